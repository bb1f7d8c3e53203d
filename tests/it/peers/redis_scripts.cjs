// A chapter of work by libraries for Node that send scripts: locks and limiters of rates.
//
//     redis_scripts.cjs HOST PORT
//
// It runs against Spindle and against redis-server, so that the chapter itself is right.
'use strict';
const assert = require('node:assert/strict');
const Redis = require('ioredis');
const { createClient } = require('redis');
const { RedisStore } = require('rate-limit-redis');
const { RateLimiterRedis } = require('rate-limiter-flexible');
const { Mutex } = require('redis-semaphore');
const [host, port] = [process.argv[2], Number(process.argv[3])];

async function isRefused(promise) {
  return promise.then(() => false, () => true);
}

async function redlockOfCallbacks(redis) {
  const Redlock = require('redlock4');
  const redlock = new Redlock([redis], { retryCount: 0 });
  const lock = await redlock.lock('redlock4', 10_000);
  assert.ok(await isRefused(redlock.lock('redlock4', 10_000)));
  await lock.extend(20_000);
  assert.ok((await redis.pttl('redlock4')) > 19_000);
  await lock.unlock();
  assert.equal(await redis.exists('redlock4'), 0);
  assert.ok(await isRefused(lock.extend(1_000)));
}

async function redlockOfPromises(redis) {
  const { default: Redlock } = require('redlock5');
  const redlock = new Redlock([redis], { retryCount: 0 });
  redlock.on('error', () => {});
  let lock = await redlock.acquire(['redlock5'], 10_000);
  assert.ok(await isRefused(redlock.acquire(['redlock5'], 10_000)));
  lock = await lock.extend(20_000);
  assert.ok((await redis.pttl('redlock5')) > 19_000);
  await lock.release();
  assert.equal(await redis.exists('redlock5'), 0);
  assert.equal(await redlock.using(['redlock5'], 10_000, async () => 'done'), 'done');
}

async function rateLimitRedis(client) {
  const store = new RedisStore({ sendCommand: (...command) => client.sendCommand(command), prefix: 'rl:' });
  await store.init({ windowMs: 60_000 });
  const hits = [];
  for (let hit = 0; hit < 3; hit += 1) hits.push((await store.increment('guest')).totalHits);
  assert.deepEqual(hits, [1, 2, 3]);
  const { totalHits, resetTime } = await store.get('guest');
  assert.equal(totalHits, 3);
  assert.ok(resetTime - Date.now() > 50_000 && resetTime - Date.now() <= 60_000);
  await store.decrement('guest');
  assert.equal((await store.increment('guest')).totalHits, 3);
  await store.resetKey('guest');
  assert.equal((await store.increment('guest')).totalHits, 1);
}

async function rateLimiterFlexible(storeClient, keyPrefix) {
  const useRedisPackage = keyPrefix === 'node-redis';
  const limiter = new RateLimiterRedis({ storeClient, points: 5, duration: 60, keyPrefix, useRedisPackage });
  const first = await limiter.consume('guest', 2);
  assert.deepEqual([first.consumedPoints, first.remainingPoints, first.isFirstInDuration], [2, 3, true]);
  assert.ok(first.msBeforeNext > 50_000 && first.msBeforeNext <= 60_000);
  assert.equal((await limiter.consume('guest', 3)).remainingPoints, 0);
  const refused = await limiter.consume('guest').then(() => null, (reason) => reason);
  assert.equal(refused.consumedPoints, 6);
}

async function redisSemaphore(redis) {
  const options = { lockTimeout: 10_000, acquireTimeout: 50, refreshInterval: 20, retryInterval: 5 };
  const [mutex, other] = [new Mutex(redis, 'mutex', options), new Mutex(redis, 'mutex', options)];
  await mutex.acquire();
  assert.ok(await isRefused(other.acquire()));
  // The library refreshes the lock meanwhile.
  await redis.pexpire('mutex:mutex', 5_000);
  while ((await redis.pttl('mutex:mutex')) <= 5_000);
  await mutex.release();
  await other.acquire();
  await other.release();
  assert.equal(await redis.exists('mutex:mutex'), 0);
}

async function main() {
  const redis = new Redis({ host, port });
  const client = await createClient({ socket: { host, port } }).connect();
  await redis.flushdb();
  await redlockOfCallbacks(redis);
  await redlockOfPromises(redis);
  await rateLimitRedis(client);
  await rateLimiterFlexible(redis, 'ioredis');
  await rateLimiterFlexible(client, 'node-redis');
  await redisSemaphore(redis);
  console.log('redlock 4 and 5, rate-limit-redis, rate-limiter-flexible, redis-semaphore');
  await redis.quit();
  await client.quit();
}

main();
