// Publishes messages of all kinds with amqplib. The argument is how many of each.
import amqp from 'amqplib'

const connection = await amqp.connect(process.env.BROKER)

// A queue of Redrive's cannot be declared with other arguments; it can be looked at.
const trial = await connection.createChannel()
trial.on('error', () => {})
await trial.assertQueue('async', { durable: true }).then(
  () => console.log('asserted'),
  (error) => console.log(`assertQueue: ${error.code}`),
)
const look = await connection.createChannel()
await look.checkQueue('async')
await look.assertExchange('async', 'direct', { durable: true })

const channel = await connection.createConfirmChannel()
const returned = []
channel.on('return', (message) => returned.push(message.properties.messageId))
const publish = (key, name, mode) =>
  channel.publish('async', key, Buffer.from(JSON.stringify({ name, text: 'é\u2028\n' })), {
    mandatory: true, persistent: true, messageId: name, type: 'shop.order', contentType: 'application/json', correlationId: 'c-' + name,
    timestamp: 1700000000, headers: { tenant: 'acme', mode, number: 7, yes: true },
  })
for (let i = 1; i <= Number(process.argv[2]); i++) {
  for (const mode of ['plain', 'busy', 'wrong']) publish('async', `${mode}-${i}`, mode)
}
publish('nobody', 'lost', 'lost')
await channel.waitForConfirms()
console.log(`returned: ${returned}`)
await connection.close()
