// node round_trip.js BOOTSTRAP TOPIC COUNT PAUSE_MS: an idempotent kafkajs producer writes COUNT records by hundreds, with PAUSE_MS
// between them, while a group of one reads: all of them must be there, and no offset passed over.
//
// Each send is for one partition: kafkajs 2.2.4 forgets the records of a partition whose leadership moves, within one send, to a
// broker that has answered for another partition already (sendMessages.js: it is in responsePerBroker, and is not asked again).
const { Kafka, logLevel } = require('kafkajs')

const LIMIT_MS = 120000
const HUNDRED = 100
const [bootstrap, topic, countText, pauseText] = process.argv.slice(2)
const count = Number(countText)
const pauseMs = Number(pauseText)
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const seen = new Set()
const next = {}
let gaps = 0

function take({ partition, message }) {
  const offset = Number(message.offset)
  if (offset > (next[partition] ?? 0)) gaps += 1
  next[partition] = offset + 1
  seen.add(message.value.toString())
}

async function write(kafka) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const quarter = Math.floor(count / 4 / HUNDRED) * HUNDRED
  for (let first = 0; first < count; first += HUNDRED) {
    const numbers = Array.from({ length: HUNDRED }, (_, index) => first + index)
    if (first === quarter) console.log('QUARTER')
    await producer.send({ topic, acks: -1, messages: numbers.map(number => ({ key: `${first}`, value: `${number}` })) })
    await sleep(pauseMs)
  }
  await producer.disconnect()
}

async function main() {
  const retry = { retries: 20, maxRetryTime: 5000 }
  const kafka = new Kafka({ clientId: 'round-trip', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry })
  const consumer = kafka.consumer({ groupId: topic })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async found => take(found) })
  await write(kafka)
  const deadline = Date.now() + LIMIT_MS
  while (seen.size < count && Date.now() < deadline) await sleep(100)
  await consumer.disconnect()
  const isWhole = seen.size === count && gaps === 0
  console.log(isWhole ? 'PASS' : `FAIL read ${seen.size} of ${count}, ${gaps} gaps`)
  process.exit(isWhole ? 0 : 1)
}

main().catch(error => {
  console.log('FAIL', error)
  process.exit(1)
})
