// Writes numbers with the protocol's exactly-once producer, follows them meanwhile, and prints what it has seen.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const url = process.env.STREAM_URL
const count = Number(process.env.COUNT)
const errors = []
const handle = await DurableStream.create({ url, contentType: "application/json" })
const producer = new IdempotentProducer(handle, "numbers", {
  lingerMs: 1, maxInFlight: 1, onError: (error) => errors.push(String(error)),
})
const followed = []

async function follow() {
  let offset = "-1"
  while (followed.length < count) {
    try {
      const answer = await stream({ url, offset, live: "sse" })
      answer.subscribeJson(async (batch) => {
        followed.push(...batch.items)
        offset = batch.offset
        if (followed.length >= count) answer.cancel()
      })
      await answer.closed
    } catch {
      await new Promise((done) => setTimeout(done, 200)) // the gateway is away: on from the last position
    }
  }
}

const over = follow()
for (let number = 0; number < count; number++) {
  if (number === count / 2) {
    await producer.flush() // it does not send again what got no answer: that is the application's
    console.log("half")
    await new Promise((done) => process.stdin.once("data", done))
  }
  producer.append(JSON.stringify(number))
  await new Promise((done) => setTimeout(done, 20))
}
await producer.flush()
await over
console.log(JSON.stringify({ followed, errors }))
process.exit(0)
