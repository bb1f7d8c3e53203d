// A chapter of work by ioredis and node-redis, of two major versions each.
//
//     redis_node.cjs HOST PORT
//
// It runs against Spindle and against redis-server, so that the chapter itself is right.
'use strict';
const assert = require('node:assert/strict');
const [host, port] = [process.argv[2], Number(process.argv[3])];

const KEYS = [1, 63, 64, 65, 100, 4096].map((size) => Buffer.alloc(size, 'k')).concat([Buffer.from('\r\n\0\xff', 'latin1')]);
const VALUES = ['', '\0', '\r\n$-1\r\n'].map((text) => Buffer.from(text)).concat([Buffer.alloc(1 << 20, 0xfe)]);
const names = Array.from({ length: 10_000 }, (_, number) => `stay:${number}`);

// Writes until it is stopped. Resolves to the number of rounds.
async function writing(set, state) {
  let rounds = 0;
  for (; !state.isOver; rounds += 1) await set(`go:${rounds % 100}`, 'v');
  return rounds;
}

// Waits until so many messages have come.
async function arrived(messages, count) {
  while (messages.length < count) await new Promise((resolve) => setTimeout(resolve, 1));
}

const EVENTS = ['set', 'expire', 'expired'];

async function ioredisTransactions(redis, other) {
  const replies = await redis.multi().set('a', 1).incrby('a', 41).get('a').mset('b', 2, 'c', 3).mget('b', 'c').exec();
  assert.deepEqual(replies, [[null, 'OK'], [null, 42], [null, '42'], [null, 'OK'], [null, ['2', '3']]]);
  const [done, refused] = await redis.multi().set('w', 'x').incr('w').exec();
  assert.ok(done[1] === 'OK' && refused[0] instanceof Error);
  await assert.rejects(redis.multi().set('w', 'y').call('SET', 'w').exec(), /EXECABORT/);
  await redis.watch('a');
  await other.incr('a');
  assert.equal(await redis.multi().set('a', 0).exec(), null);
  await redis.watch('a');
  assert.deepEqual(await redis.multi().rename('b', 'd').get('d').exec(), [[null, 'OK'], [null, '2']]);
  assert.ok((await redis.get('w')) === 'x' && (await redis.exists('b')) === 0);
  const many = Array.from({ length: 100 }, () => redis.multi().incr('many').incr('many').exec());
  assert.deepEqual((await Promise.all(many)).at(-1), [[null, 199], [null, 200]]);
}

async function ioredisChannels(redis) {
  const subscriber = redis.duplicate({ lazyConnect: true });
  await subscriber.connect();
  const [messages, events] = [[], []];
  subscriber.on('message', (channel, message) => messages.push([channel, message]));
  subscriber.on('pmessage', (_, channel, key) => events.push(`${channel} ${key}`));
  await redis.config('SET', 'notify-keyspace-events', 'KEA');
  assert.equal(await subscriber.subscribe('news', 'other'), 2);
  assert.equal(await subscriber.psubscribe('__keyevent@6__:*'), 3);
  assert.equal(await redis.publish('news', '1'), 1);
  assert.deepEqual(await redis.multi().publish('other', '2').publish('nobody', '3').exec(), [[null, 1], [null, 0]]);
  await arrived(messages, 2);
  assert.deepEqual(messages, [['news', '1'], ['other', '2']]);
  await redis.set('lapse', 'v', 'PX', 20);
  await arrived(events, 3);
  assert.deepEqual(events, EVENTS.map((event) => `__keyevent@6__:${event} lapse`));
  // The connection breaks, and the client subscribes again.
  const ready = new Promise((resolve) => subscriber.once('ready', resolve));
  subscriber.stream.destroy();
  await ready;
  while ((await redis.publish('news', 'again')) === 0);
  await arrived(messages, 3);
  assert.deepEqual(messages[2], ['news', 'again']);
  assert.equal(await subscriber.unsubscribe('news', 'other'), 1);
  assert.equal(await subscriber.punsubscribe(), 0);
  assert.equal(await subscriber.get('a'), '43');
  subscriber.disconnect();
}

async function ioredis(Redis) {
  const redis = new Redis({ host, port, db: 6, maxRetriesPerRequest: 5 });
  const other = redis.duplicate();
  await redis.flushdb();
  for (const key of KEYS) {
    for (const value of VALUES) {
      assert.equal(await redis.set(key, value), 'OK');
      assert.deepEqual(await redis.getBuffer(key), value);
    }
  }
  assert.equal(await redis.get('absent'), null);
  const large = Buffer.alloc(16 << 20, 'l');
  assert.equal(await redis.set('large', large, 'EX', 100), 'OK');
  assert.equal(Buffer.compare(await redis.getBuffer('large'), large), 0);
  assert.ok((await redis.ttl('large')) > 90 && (await redis.del('large')) === 1);
  const numbers = await Promise.all(Array.from({ length: 1_000 }, () => redis.incr('sum')));
  assert.equal(numbers.at(-1), 1_000);
  const replies = await redis.pipeline().set('a', 1).incrby('a', 41).get('a').lpush('a', 1).exec();
  assert.deepEqual(replies.slice(0, 3), [[null, 'OK'], [null, 42], [null, '42']]);
  assert.ok(replies[3][0] instanceof Error);
  await ioredisTransactions(redis, other);
  await ioredisChannels(redis);
  await redis.set('short', 'v', 'PX', 30);
  while ((await redis.get('short')) !== null);
  await redis.mset(Object.fromEntries(names.map((name) => [name, 'v'])));
  const state = { isOver: false };
  const writer = writing((key, value) => other.set(key, value, 'PX', 20), state);
  const found = new Set();
  for await (const page of redis.scanStream({ match: 'stay:*', count: 500 })) page.forEach((key) => found.add(key));
  state.isOver = true;
  assert.ok((await writer) > 0);
  assert.equal(found.size, names.length);
  // The connection breaks, and the client makes another.
  const before = await redis.client('ID');
  const ready = new Promise((resolve) => redis.once('ready', resolve));
  redis.stream.destroy();
  await ready;
  assert.notEqual(await redis.client('ID'), before);
  assert.equal(await redis.get('a'), '43');
  redis.disconnect();
  other.disconnect();
}

async function nodeTransactions(module, redis, other) {
  const replies = await redis.multi().set('a', 1).incrBy('a', 41).get('a').mSet([['b', '2'], ['c', '3']]).exec();
  assert.deepEqual(replies, ['OK', 42, '42', 'OK']);
  await redis.set('w', 'x');
  await assert.rejects(redis.multi().set('w', 'y').addCommand(['SET', 'w']).exec());
  await redis.watch('a');
  await other.incr('a');
  await assert.rejects(redis.multi().set('a', '0').exec(), module.WatchError);
  await redis.watch(['a', 'b']);
  assert.deepEqual(await redis.multi().rename('b', 'd').get('d').exec(), ['OK', '2']);
  assert.ok((await redis.get('w')) === 'x' && (await redis.get('a')) === '43' && (await redis.exists('b')) === 0);
  const many = Array.from({ length: 100 }, () => redis.multi().incr('many').incr('many').exec());
  assert.deepEqual((await Promise.all(many)).at(-1), [199, 200]);
}

async function nodeChannels(redis) {
  const subscriber = redis.duplicate();
  subscriber.on('error', () => {});
  await subscriber.connect();
  const [messages, events] = [[], []];
  await redis.configSet('notify-keyspace-events', 'KEA');
  await subscriber.subscribe(['news', 'other'], (message, channel) => messages.push([channel, message]));
  await subscriber.pSubscribe('__keyevent@7__:*', (key, channel) => events.push(`${channel} ${key}`));
  assert.equal(await redis.publish('news', '1'), 1);
  assert.deepEqual(await redis.multi().publish('other', '2').publish('nobody', '3').exec(), [1, 0]);
  await arrived(messages, 2);
  assert.deepEqual(messages, [['news', '1'], ['other', '2']]);
  await redis.set('lapse', 'v', { PX: 20 });
  await arrived(events, 3);
  assert.deepEqual(events, EVENTS.map((event) => `__keyevent@7__:${event} lapse`));
  await subscriber.unsubscribe(['news', 'other']);
  await subscriber.pUnsubscribe('__keyevent@7__:*');
  assert.equal(await redis.publish('news', '3'), 0);
  // Version 6 returns bytes from a connection that had subscriptions.
  assert.equal(String(await subscriber.get('a')), '43');
  await subscriber.disconnect();
}

async function nodeRedis(module, options, isCurrent) {
  const redis = module.createClient({ socket: { host, port }, database: 7, ...options });
  redis.on('error', () => {});
  await redis.connect();
  const other = redis.duplicate();
  other.on('error', () => {});
  await other.connect();
  await redis.flushDb();
  for (const key of KEYS) {
    for (const value of VALUES) {
      assert.equal(await redis.set(key, value), 'OK');
      const read = isCurrent
        ? await redis.withTypeMapping({ [module.RESP_TYPES.BLOB_STRING]: Buffer }).get(key)
        : await redis.get(module.commandOptions({ returnBuffers: true }), key);
      assert.deepEqual(read, value);
    }
  }
  const large = 'l'.repeat(16 << 20);
  assert.equal(await redis.set('large', large, { EX: 100 }), 'OK');
  assert.ok((await redis.get('large')) === large && (await redis.ttl('large')) > 90);
  assert.equal(await redis.del('large'), 1);
  const numbers = await Promise.all(Array.from({ length: 1_000 }, () => redis.incr('sum')));
  assert.equal(numbers.at(-1), 1_000);
  await nodeTransactions(module, redis, other);
  await nodeChannels(redis);
  assert.equal(await redis.set('sum', 'x', { NX: true }), null);
  assert.equal(Number(await redis.incrByFloat('part', 0.5)), 0.5);
  await redis.mSet(names.map((name) => [name, 'v']));
  assert.equal((await redis.mGet(names)).filter((value) => value === 'v').length, names.length);
  const state = { isOver: false };
  const writer = writing((key, value) => other.set(key, value, { PX: 20 }), state);
  const found = new Set();
  // Version 4 makes a number of the cursor: it has to be exact as one.
  let cursor = isCurrent ? '0' : 0;
  do {
    const page = await redis.scan(cursor, { MATCH: 'stay:*', COUNT: 500 });
    assert.ok(Number.isSafeInteger(Number(page.cursor)));
    cursor = page.cursor;
    page.keys.forEach((key) => found.add(key));
  } while (Number(cursor) !== 0);
  state.isOver = true;
  assert.ok((await writer) > 0);
  assert.equal(found.size, names.length);
  await assert.rejects(redis.sendCommand(['LPUSH', 'sum', '1']));
  const before = await redis.sendCommand(['CLIENT', 'ID']);
  const ready = new Promise((resolve) => redis.once('ready', resolve));
  await redis.sendCommand(['QUIT']);
  await ready;
  assert.notEqual(await redis.sendCommand(['CLIENT', 'ID']), before);
  assert.equal(await redis.get('sum'), '1000');
  await (isCurrent ? redis.close() : redis.disconnect());
  await (isCurrent ? other.close() : other.disconnect());
}

async function timed(name, chapter) {
  const begin = Date.now();
  await chapter;
  console.log(name, Date.now() - begin, 'ms');
}

(async () => {
  await timed('ioredis 5', ioredis(require('ioredis')));
  await timed('ioredis 6', ioredis(require('ioredis6')));
  await timed('node-redis 4', nodeRedis(require('redis4'), {}, false));
  await timed('node-redis, RESP2', nodeRedis(require('redis'), { RESP: 2 }, true));
  await timed('node-redis, RESP3', nodeRedis(require('redis'), { RESP: 3 }, true));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
