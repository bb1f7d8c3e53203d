// A chapter of work by jackd and fivebeans. What it prints is the same on every server of the protocol.
//
// Usage: beanstalk_node.cjs HOST PORT
'use strict'

const Jackd = require('jackd')
const { client: FiveBeans } = require('fivebeans')

const [host, port] = process.argv.slice(2)

async function withJackd() {
  const client = new Jackd()
  await client.connect({ host, port: Number(port) })
  console.log(await client.use('jack'), await client.watch('jack'), await client.ignore('default'))
  const ids = []
  for (const priority of [3, 1, 2]) ids.push(await client.put(`job ${priority}`, { priority, ttr: 100 }))
  for (let count = 0; count < 3; count += 1) {
    const job = await client.reserveWithTimeout(5)
    console.log(job.payload.toString())
    if (count === 0) {
      await client.touch(job.id)
      await client.bury(job.id, 7)
      continue
    }
    if (count === 1) await client.release(job.id, { priority: 9 })
    else await client.delete(job.id)
  }
  console.log((await client.peekBuried()).payload.toString(), (await client.kick(5)))
  for (let count = 0; count < 2; count += 1) {
    const job = await client.reserve()
    console.log(job.payload.toString())
    await client.delete(job.id)
  }
  await client.reserveWithTimeout(0).catch(error => console.log(error.message.trim()))
  await client.delete(ids[0]).catch(error => console.log(error.message.trim()))
  await client.put('x'.repeat(70000)).catch(error => console.log(error.message.trim()))
  await client.disconnect()
}

function call(client, method, ...given) {
  return new Promise(resolve => {
    client[method](...given, (error, ...results) => resolve(error || results))
  })
}

async function withFiveBeans() {
  const client = new FiveBeans(host, Number(port))
  await new Promise(resolve => client.on('connect', resolve).connect())
  console.log(await call(client, 'use', 'five'), await call(client, 'watch', 'five'))
  await call(client, 'put', 5, 0, 100, 'one')
  await call(client, 'put', 1, 0, 100, JSON.stringify(['two']))
  const [first, body] = await call(client, 'reserve')
  console.log(body.toString())
  console.log(await call(client, 'release', first, 10, 0))
  const [second, other] = await call(client, 'reserve_with_timeout', 5)
  console.log(other.toString(), await call(client, 'bury', second, 1), await call(client, 'kick', 9))
  const figures = (await call(client, 'stats_tube', 'five'))[0]
  console.log(figures['current-jobs-ready'], figures['total-jobs'], (await call(client, 'stats_job', second))[0].state)
  for (const id of [first, second]) console.log(await call(client, 'destroy', id))
  console.log(await call(client, 'destroy', first), await call(client, 'reserve_with_timeout', 0))
  console.log((await call(client, 'list_tubes_watched'))[0].sort(), await call(client, 'list_tube_used'))
  client.quit()
}

withJackd().then(withFiveBeans).catch(error => {
  console.error(error)
  process.exit(1)
})
