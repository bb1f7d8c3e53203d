// A client in JavaScript, on npm's zeromq: Request and Dealer for requests, Subscriber for a notification.
//
//     node peer.cjs KV PUBLISH

const assert = require("node:assert");
const { Dealer, Request, Subscriber } = require("zeromq");

const [CREATE_TABLE, UPDATE, GET] = [0, 2, 4].map((code) => Buffer.from([code]));
const OK = Buffer.from([1]);
const options = { receiveTimeout: 20_000, sendTimeout: 20_000, linger: 0 };
const table = "js";

async function main([kv, publish]) {
  const [req, dealer, sub] = [new Request(options), new Dealer(options), new Subscriber({ linger: 0, receiveTimeout: 100 })];
  req.connect(kv);
  dealer.connect(kv);
  sub.connect(publish);
  sub.subscribe(table);

  const ask = async (socket, ...frames) => {
    await socket.send(frames);
    return socket.receive();
  };
  assert.deepStrictEqual(await ask(req, CREATE_TABLE, table), [OK]);
  for (let number = 0; number < 100; number++) await dealer.send([UPDATE, table, "k", "v"]);
  for (let number = 0; number < 100; number++) assert.deepStrictEqual(await dealer.receive(), [OK]);

  // The subscription takes a moment to reach the server.
  let change;
  while (!change) {
    assert.deepStrictEqual(await ask(req, UPDATE, table, "k", "v"), [OK]);
    change = await sub.receive().catch((late) => assert.strictEqual(late.code, "EAGAIN"));
  }
  assert.deepStrictEqual(change, [Buffer.from(table), Buffer.from([0]), Buffer.from("k")]);

  assert.deepStrictEqual(await ask(req, GET, table, "k"), [OK, Buffer.from("v")]);
  [req, dealer, sub].forEach((socket) => socket.close());
}

main(process.argv.slice(2)).catch((fault) => {
  console.error(fault);
  process.exit(1);
});
