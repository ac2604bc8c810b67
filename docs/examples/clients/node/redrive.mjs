// Redrive's process protocol for Node 18 and newer. Copy this file beside your program:
//
//   import { serve } from './redrive.mjs'
//   await serve(async (message) => { const order = JSON.parse(message.body); … }, { concurrency: 10 })
//
// A handler whose promise is kept has handled the message. One that throws has failed, and the retry policy decides what
// follows, unless it throws Fail, Drop, RetryAfter or Release. What is printed goes to the worker's log.

// A failure with a class and a status for the expressions of a retry policy.
export class Failure extends Error {
  constructor(text = '', { name, status = 0, carry } = {}) {
    super(text)
    this.name = name ?? new.target.name
    this.status = status
    this.carry = carry // the next attempt finds it in message.carry
  }
}

// The message is wrong: to the failure queue, with no more retries.
export class Fail extends Failure {
  advice = 'fail'
}

// Nobody needs the message any more: it is forgotten.
export class Drop extends Failure {
  advice = 'drop'
}

// The time of the message has not come: again after so many seconds, and it does not count.
export class RetryAfter extends Failure {
  advice = 'retry'
  constructor(seconds, text, options) {
    super(text, options)
    this.retryAfter = seconds
  }
}

// This was no attempt: the message comes again after so many seconds, and neither an attempt nor a retry is counted.
export class Release extends RetryAfter {
  advice = 'release'
}

// Calls handle with messages, as many at a time as concurrency says, until the worker has no more and all are answered. Then
// close what keeps Node running, such as connections to a database. The message has body (a string, or a Buffer where it is not
// UTF-8), deadline, id, attempt, headers and whatever else the protocol tells, and progress(), which asks for the whole timeout anew.
export async function serve(handle, { concurrency = 1 } = {}) {
  const print = process.stdout.write.bind(process.stdout)
  process.stdout.write = process.stderr.write.bind(process.stderr) // what is printed is no frame
  const write = (frame) => print(JSON.stringify(frame) + '\n')

  const answer = async ({ id, deadline, message, body, bodyBase64 }) => {
    const progress = () => write({ type: 'progress', id })
    try {
      body ??= Buffer.from(bodyBase64, 'base64')
      await handle({ ...message, deadline, body, progress })
      write({ type: 'result', id, outcome: 'ack' })
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown))
      if (!(error instanceof Failure)) console.error(error)
      const { name, message: text, status, advice, retryAfter, carry } = error
      const whole = Number.isInteger(status) ? status : undefined // of an error of another library it may be anything
      const told = error instanceof Failure ? { status: whole, advice, retryAfter, carry } : { status: whole }
      write({ type: 'result', id, outcome: 'failure', class: String(name), message: String(text).slice(0, 1000), ...told })
    }
  }

  const inHand = new Set()
  let parts = [] // of a line of which the end has not come
  write({ type: 'hello', protocol: 1, concurrency })
  for await (let chunk of process.stdin) {
    for (let end; (end = chunk.indexOf(10)) >= 0; chunk = chunk.subarray(end + 1)) {
      const frame = JSON.parse(Buffer.concat([...parts, chunk.subarray(0, end)]))
      parts = []
      if (frame.type !== 'message') continue
      const answered = answer(frame).finally(() => inHand.delete(answered))
      inHand.add(answered)
    }
    if (chunk.length > 0) parts.push(chunk)
  }
  await Promise.all(inHand)
}
