// Against a gateway at AIRLOCK_HTTP, with a key of it in AIRLOCK_API_KEY and one of another tenant in AIRLOCK_OTHER_KEY.
import assert from "node:assert/strict";
import { test } from "node:test";

import { AirlockError, bytes, Client, text } from "../dist/index.js";

const url = process.env.AIRLOCK_HTTP;
const airlock = new Client(url, { apiKey: process.env.AIRLOCK_API_KEY });

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

test("a tool call returns its streams, its exit code and the deciding rule", async () => {
  const result = await airlock.callTool("execute", { command: "echo out; echo err >&2; exit 3" }, { thread: "ts" });
  assert.equal(text(result, "stdout"), "out\n");
  assert.equal(text(result, "stderr"), "err\n");
  assert.equal(result.exit_code, 3);
  assert.equal(result.verdict, "VERDICT_ALLOW");
});

test("bytes that are no text come whole", async () => {
  const result = await airlock.callTool("execute", { command: String.raw`printf '\377\000a'` }, { thread: "ts" });
  assert.deepEqual([...bytes(result, "stdout")], [255, 0, 97]);
});

test("output comes before the result", async () => {
  const events = await all(airlock.streamToolCall("execute", { command: "echo one" }, { thread: "ts" }));
  assert.equal(text(events[0].output, "data"), "one\n");
  assert.equal(events.at(-1).result.exit_code, 0);
});

test("files are written, listed, read and removed", async () => {
  const data = Uint8Array.from({ length: 300_000 }, (_, n) => n % 256);
  assert.equal(await airlock.writeFile("ts", "/workspace/a b.bin", data), data.length);
  assert.deepEqual(await airlock.readFile("ts", "/workspace/a b.bin"), data);
  assert.deepEqual([...(await airlock.readFile("ts", "a b.bin", { offset: 2, limitBytes: 3 }))], [2, 3, 4]);
  assert.equal((await airlock.statFile("ts", "a b.bin")).size_bytes, "300000");
  assert.ok((await all(airlock.listFiles("ts"))).some((entry) => entry.name === "a b.bin"));
  await airlock.removeFile("ts", "a b.bin");
  await assert.rejects(airlock.readFile("ts", "a b.bin"), { reason: "NOT_FOUND" });
});

test("a run is watched to its end", async () => {
  const events = await all(airlock.run("say hello"));
  assert.equal(events.at(-1).type, "run_finished");
  assert.equal(events[0].sequence, "1");
  const [run] = await all(airlock.listRuns());
  assert.notEqual(run.status, "RUN_STATUS_RUNNING");
});

test("a process takes input and is waited for", async () => {
  const started = await airlock.startProcess("ts", ["cat"], { stdin: true });
  await airlock.writeProcess("ts", started.id, "typed", { end: true });
  await airlock.waitProcess("ts", started.id);
  const pieces = await all(airlock.readProcess("ts", started.id));
  assert.equal(pieces.map((piece) => text(piece, "data")).join(""), "typed");
  await airlock.removeProcess("ts", started.id);
});

test("aborting a call ends it", async () => {
  const signal = AbortSignal.timeout(500);
  await assert.rejects(airlock.callTool("execute", { command: "sleep 300" }, { thread: "aborted", signal }));
});

test("a deadline is an error with its reason", async () => {
  const call = airlock.callTool("execute", { command: "sleep 300" }, { thread: "late", timeoutS: 0.3 });
  await assert.rejects(call, { reason: "DEADLINE_EXCEEDED", status: 504 });
});

test("another tenant's thread is not found, and a wrong key is refused", async () => {
  const other = new Client(url, { apiKey: process.env.AIRLOCK_OTHER_KEY });
  await airlock.callTool("execute", { command: "echo > mine" }, { thread: "private" });
  await assert.rejects(other.readFile("private", "mine"), { reason: "NOT_FOUND" });
  const unknown = new Client(url, { apiKey: "alk_wrong" });
  await assert.rejects(unknown.listTools(), (error) => error instanceof AirlockError && error.reason === "UNAUTHENTICATED");
});

test("violations name their fields", async () => {
  await assert.rejects(all(airlock.listRuns({ page_size: 1000 })), (error) => error.violations[0].field === "page_size");
});

test("a gateway that is not there is unavailable, after the attempts", async () => {
  const gone = new Client("http://127.0.0.1:9", { apiKey: "alk_x", attempts: 2 });
  await assert.rejects(gone.listTools(), { reason: "UNAVAILABLE" });
});
