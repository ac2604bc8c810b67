// Obeys the orders of the package handlertest. The arguments are the folder of the client, and how many messages it takes at a time.

import { createHash } from 'node:crypto'
import { writeSync } from 'node:fs'
import { connect } from 'node:net'
import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'

const [folder, concurrency] = process.argv.slice(2)
const { Drop, Fail, Failure, Release, RetryAfter, serve } = await import(pathToFileURL(resolve(folder, 'redrive.mjs')))

const floodSize = 64 << 20

function description(m) {
  const moment = (value) => (value ? value.replace(/\.\d+/, '') : '0001-01-01T00:00:00Z')
  return [
    m.id ?? '', m.idempotencyKey ?? '', m.attempt ?? 0, m.retries ?? 0, m.queue ?? '', m.exchange ?? '', m.routingKey ?? '', m.type ?? '',
    m.correlationId ?? '', m.contentType ?? '', m.contentEncoding ?? '',
    m.replyTo ?? '', m.appId ?? '', m.userId ?? '', m.priority ?? 0, m.expiration ?? '', moment(m.timestamp), moment(m.firstFailure),
    m.traceparent ?? '', m.tracestate ?? '',
  ].join('|')
}

function flood() {
  const part = Buffer.from('flood '.repeat(10_000) + '\n')
  for (let written = 0; written < floodSize;) {
    try {
      written += writeSync(2, part)
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error // the pipe is full
    }
  }
}

async function hang(m) {
  const address = m.headers['test-report']
  if (address) {
    const at = address.lastIndexOf(':')
    connect(Number(address.slice(at + 1)), address.slice(0, at)) // it stands for as long as this process does
  }
  await new Promise(() => {})
}

const orders = {
  succeed: (m) => {
    if (createHash('sha256').update(m.body).digest('hex') !== m.headers['test-sum']) {
      throw new Failure('the body is another one', { name: 'Mismatch' })
    }
  },
  'succeed unread': () => {},
  refuse: () => {
    throw Object.assign(new Failure('no flour left', { name: 'OutOfStock' }), { retryAfter: 7 })
  },
  'advise fail': () => {
    throw new Fail('as it asks for', { name: 'Advised' })
  },
  'advise drop': () => {
    throw new Drop('as it asks for', { name: 'Advised' })
  },
  'advise retry': () => {
    throw new RetryAfter(90, 'as it asks for', { name: 'Advised' })
  },
  'advise release': () => {
    throw new Release(90, 'as it asks for', { name: 'Advised' })
  },
  carry: (m) => {
    throw new Failure('half done', { name: 'Half', carry: (m.carry ?? '') + '+1' })
  },
  describe: (m) => {
    throw new Failure(description(m), { name: 'Described' })
  },
  hang,
  crash: () => process.abort(),
  'flood success': flood,
  'flood failure': () => {
    flood()
    throw new Failure('the water rises', { name: 'Flood' })
  },
  progress: async (m) => {
    for (let i = 0; i < 8; i++) { // altogether longer than the timeout
      await sleep(500)
      m.progress()
    }
  },
  raise: () => {
    console.log('a stray print')
    throw new TypeError('no such thing')
  },
}

await serve(async (m) => {
  const order = orders[m.headers['test-order']]
  if (!order) throw new Failure(`the order is ${m.headers['test-order']}`, { name: 'NoOrder' })
  await order(m)
}, { concurrency: Number(concurrency || 1) })
