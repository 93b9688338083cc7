// Answers SQL about a trace with Perfetto's trace processor, as its viewer has it: compiled for WebAssembly.
//
// node ask.mjs FOLDER TRACE QUERY...: writes a JSON list with the rows of each query. FOLDER has trace_processor.wasm,
// engine_bundle.node.js (what runs it in a worker) and engine.mjs (the words of its channel).

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [folder, trace, ...queries] = process.argv.slice(2);

/** What is written to the console, warnings of the engine above all, is not the answer. */
console.log = console.warn = () => {};

/** Starts the engine in this thread; the bundle believes that it is a worker of a browser. */
async function startEngine() {
  globalThis.self = globalThis;
  globalThis.WorkerGlobalScope = class {};
  globalThis.location = { href: pathToFileURL(`${folder}/`).href };
  globalThis.wasm = new Uint8Array(readFileSync(join(folder, "trace_processor.wasm")));
  const bundle = readFileSync(join(folder, "engine_bundle.node.js"), "utf8");
  // The file is the one for 32 bits, whatever this Node is able to.
  const adapted = bundle
    .replace("this.useMemory64 = hasMemory64Support()", "this.useMemory64 = false")
    .replace("locateFile:", "wasmBinary: globalThis.wasm, locateFile:")
    .replace("new wasm_bridge_1.WasmBridge()", "globalThis.bridge = new wasm_bridge_1.WasmBridge()");
  vm.runInThisContext(adapted);
  while (!globalThis.bridge.reqBufferAddr) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }

  const { EngineBase } = await import(pathToFileURL(join(folder, "engine.mjs")).href);
  class Engine extends EngineBase {
    mode = "WASM";
    id = "test";
    constructor(port) {
      super();
      this.port = port;
      port.onmessage = (message) => this.onRpcResponseBytes(message.data);
    }
    rpcSendRequestBytes(bytes) {
      this.port.postMessage(bytes);
    }
  }
  const channel = new MessageChannel();
  globalThis.self.onmessage({ data: channel.port1 });
  return new Engine(channel.port2);
}

function rows(result) {
  const found = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    const values = result.columns().map((name) => [name, row.get(name)]);
    found.push(Object.fromEntries(values.map(([name, value]) => [name, typeof value === "bigint" ? Number(value) : value])));
  }
  return found;
}

const engine = await startEngine();
await engine.parse(new Uint8Array(readFileSync(trace)));
await engine.notifyEof();
const answers = [];
for (const query of queries) {
  answers.push(rows(await engine.query(query)));
}
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
