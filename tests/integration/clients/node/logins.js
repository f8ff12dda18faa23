// node logins.js FILE: for each case of the file, kafkajs connects by TLS with the case's mechanism, writes a record, and reads it in
// a group. The login of a case that is to fail must fail. With "seconds" in the file, it writes 0, 1, 2 and so on for that time
// instead, and tells how many.
const { readFileSync } = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const LIMIT_MS = 30000 // of one case
const LOGINS_LOST = 3 // that a record may meet: one broker is killed, and two answer again within moments
const { topic, authority, cases, seconds } = JSON.parse(readFileSync(process.argv[2]))

function clientOf({ bootstrap, mechanism, user, secret, certificate }) {
  const ssl = { ca: [readFileSync(authority)] }
  if (certificate) ssl.key = ssl.cert = readFileSync(certificate)
  const sasl = mechanism === 'OAUTHBEARER'
    ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: secret }) }
    : { mechanism: mechanism.toLowerCase(), username: user, password: secret }
  const retry = seconds ? { retries: 20, maxRetryTime: 5000 } : { retries: 5, maxRetryTime: 2000 }
  return new Kafka({ clientId: 'logins', brokers: bootstrap.split(','), ssl, sasl: mechanism ? sasl : undefined, retry, logLevel: logLevel.NOTHING })
}

async function worked(one) {
  const kafka = clientOf(one)
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ value: one.name }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `${topic}-${one.name}` })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`${one.name}: the record was not read`)), LIMIT_MS)
    consumer.run({ eachMessage: async ({ message }) => { if (`${message.value}` === one.name) { clearTimeout(late); resolve() } } }).catch(reject)
  })
  await consumer.disconnect()
}

// kafkajs takes a connection that ends during a login for a wrong password, and gives up. Nothing has been written then.
async function sent(producer, message) {
  for (let lost = 0; ; lost++) {
    try {
      return await producer.send(message)
    } catch (error) {
      if (!/authentication failed: (Connection error|Closed connection|Not connected)/.test(error.message) || lost === LOGINS_LOST) throw error
    }
  }
}

async function steady(one) {
  const producer = clientOf(one).producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  let count = 0
  for (const end = Date.now() + seconds * 1000; Date.now() < end; count++) {
    await sent(producer, { topic, acks: -1, messages: [{ value: `${count}` }] })
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  await producer.disconnect()
  console.log('COUNT', count)
}

async function refused(one) {
  const admin = clientOf(one).admin({ retry: { retries: 0 } })
  try {
    await admin.connect()
  } catch (error) {
    console.log(error.message)
    return
  }
  throw new Error(`${one.name}: the login was not refused`)
}

async function main() {
  for (const one of cases) {
    if (seconds) {
      await steady(one)
      continue
    }
    await (one.is_refused ? refused(one) : worked(one))
    console.log(one.is_refused ? 'REFUSED' : 'WORKED', one.name)
  }
}

main().then(() => process.exit(0)).catch(error => {
  console.log('FAIL', error)
  process.exit(1)
})
