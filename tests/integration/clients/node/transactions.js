// node transactions.js BOOTSTRAP INPUT OUTPUT COUNT: kafkajs consumes INPUT in a group and produces OUTPUT in transactions with the
// offsets, some of which it aborts; then it reads OUTPUT's committed records, and a second producer fences a first one.
//
// Each send is for one partition: kafkajs 2.2.4 chooses partitions again when it repeats a send, and leaves out brokers that have
// answered. So it loses and doubles records of a send to several partitions, one of which was refused at first.
const { Kafka, logLevel } = require('kafkajs')

const LIMIT_MS = 100000
const ABORTED = 3 // every third transaction
const BATCH = 20 // records of a transaction at most
const [bootstrap, input, output, countText] = process.argv.slice(2)
const count = Number(countText)
const kafka = new Kafka({ clientId: 'transactions', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { retries: 20 } })

async function producerOf(transactionalId) {
  const made = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 })
  await made.connect()
  return made
}

// One transaction: the records, and the offset behind them.
async function write(producer, group, { topic, partition, messages }, isCommitted) {
  const transaction = await producer.transaction()
  try {
    await transaction.send({ topic: output, acks: -1, messages: messages.map(({ value }) => ({ partition, value: `done-${value}` })) })
    const offset = String(Number(messages[messages.length - 1].offset) + 1)
    await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic, partitions: [{ partition, offset }] }] })
    await (isCommitted ? transaction.commit() : transaction.abort())
  } catch (error) {
    if (transaction.isActive()) await transaction.abort()
    throw error
  }
}

// Runs a member of a group until `take` has returned true.
function consume(group, topic, take) {
  let late
  const consumer = kafka.consumer({ groupId: group, readUncommitted: false })
  return new Promise((resolve, reject) => {
    late = setTimeout(() => reject(new Error(`${group} is not done in time`)), LIMIT_MS)
    const eachBatch = async ({ batch, resolveOffset, heartbeat }) => {
      const { topic, partition } = batch
      for (let first = 0; first < batch.messages.length; first += BATCH) {
        const messages = batch.messages.slice(first, first + BATCH)
        if (await take({ topic, partition, messages })) resolve()
        resolveOffset(messages[messages.length - 1].offset)
        await heartbeat()
      }
    }
    consumer.connect()
      .then(() => consumer.subscribe({ topics: [topic], fromBeginning: true }))
      .then(() => consumer.run({ autoCommit: false, eachBatch }))
      .catch(reject)
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
  }).finally(() => { clearTimeout(late); return consumer.disconnect() })
}

async function copy() {
  const group = `copy-${output}`
  const producer = await producerOf(group)
  let done = 0
  let number = 0
  await consume(group, input, async found => {
    number += 1
    if (number % ABORTED === 0) await write(producer, group, found, false)
    await write(producer, group, found, true)
    done += found.messages.length
    return done >= count
  })
  await producer.disconnect()
  console.log('COPIED', done)
}

async function read() {
  const seen = new Map()
  await consume(`read-${output}`, output, async ({ partition, messages }) => {
    for (const { value, offset } of messages) {
      const place = `${partition}@${offset}` // which comes again after a rebalance
      const before = seen.get(`${value}`) ?? place
      if (before !== place) throw new Error(`${value} was read at ${before} and at ${place}`)
      seen.set(`${value}`, place)
    }
    return seen.size >= count
  })
  console.log('READ', seen.size)
}

async function begun(value) {
  const producer = await producerOf(`fence-${output}`)
  const transaction = await producer.transaction()
  await transaction.send({ topic: output, acks: -1, messages: [{ value }] })
  return { producer, transaction }
}

async function fenced() {
  const first = await begun('lost')
  const second = await begun('kept')
  try {
    await first.transaction.commit()
    throw new Error('the first producer was not fenced')
  } catch (error) {
    if (!error.type) throw error
    console.log('FENCED', error.type)
  }
  await second.transaction.commit()
}

copy().then(read).then(fenced).then(() => process.exit(0)).catch(error => {
  console.log('FAIL', error)
  process.exit(1)
})
