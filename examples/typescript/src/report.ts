// A report service: it copies a table into a sandbox, runs a Python program that adds it up, and fetches the result. It
// does the same as examples/report_service.py, with stubs generated from proto/ and no Airlock client library.
//
//     AIRLOCK_ADDRESS=127.0.0.1:7443 AIRLOCK_API_KEY=alk_... npm start

import { randomUUID } from "node:crypto";
import { createClient, Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { ToolService, Verdict, type ToolResult } from "./gen/gateway/v1/tool_service_pb.js";
import { WorkspaceService } from "./gen/gateway/v1/workspace_service_pb.js";

const SALES = "region,amount\nnorth,120\nsouth,80\nnorth,40\nwest,15\n";
const PROGRAM = `
import collections, csv, json
totals = collections.Counter()
for row in csv.DictReader(open("/workspace/sales.csv")):
    totals[row["region"]] += int(row["amount"])
    print("read", row["region"], flush=True)
json.dump(dict(totals.most_common()), open("/workspace/report.json", "w"))
`;
const CHUNK_BYTES = 512 * 1024;
const ATTEMPTS = 4;

const thread = `report-${randomUUID()}`;
const withKey: Interceptor = (next) => (request) => {
  request.header.set("authorization", `Bearer ${process.env.AIRLOCK_API_KEY ?? ""}`);
  return next(request);
};
const baseUrl = `http://${process.env.AIRLOCK_ADDRESS ?? "127.0.0.1:7443"}`;
// Closed at the end, because an open connection keeps the process alive.
const sessionManager = new Http2SessionManager(baseUrl);
const transport = createGrpcTransport({ baseUrl, interceptors: [withKey], sessionManager });
const tools = createClient(ToolService, transport);
const workspace = createClient(WorkspaceService, transport);

// The first message names the file and the last one completes it; without the last one the old file stays.
async function* upload(path: string, data: Uint8Array) {
  yield { thread, path };
  for (let at = 0; at < data.length; at += CHUNK_BYTES) {
    yield { data: data.subarray(at, at + CHUNK_BYTES) };
  }
  yield { end: true };
}

async function download(path: string): Promise<string> {
  const pieces: Uint8Array[] = [];
  for await (const piece of workspace.readFile({ thread, path })) {
    pieces.push(piece.data);
  }
  return Buffer.concat(pieces).toString("utf8");
}

// All attempts share one request id, so a call that ran before the connection broke is answered, not repeated.
async function execute(command: string): Promise<ToolResult> {
  const call = {
    thread,
    name: "execute",
    argumentsJson: JSON.stringify({ command, timeout_s: 20 }),
    requestId: randomUUID(),
  };
  for (let attempt = 1; ; attempt++) {
    try {
      let result: ToolResult | undefined;
      // Read to the end: a stream that is abandoned early keeps its timer, and so the process, until the timeout.
      for await (const said of tools.streamToolCall({ call }, { timeoutMs: 30_000 })) {
        if (said.event.case === "output") {
          process.stdout.write(said.event.value.data);
        } else if (said.event.case === "result") {
          result = said.event.value;
        }
      }
      if (result === undefined) {
        throw new Error("the stream ended without a result");
      }
      return result;
    } catch (error) {
      const again = error instanceof ConnectError && (error.code === Code.Unavailable || error.code === Code.Aborted);
      if (!again || attempt === ATTEMPTS) {
        throw error;
      }
      await new Promise((done) => setTimeout(done, 200 * 2 ** attempt));
    }
  }
}

async function report(): Promise<void> {
  await workspace.writeFile(upload("/workspace/sales.csv", Buffer.from(SALES)));
  await workspace.writeFile(upload("/workspace/report.py", Buffer.from(PROGRAM)));
  const result = await execute("python3 /workspace/report.py");
  if (result.verdict !== Verdict.ALLOW || result.exitCode !== 0) {
    // A denied call is an answer, not an error. It names the rule, which the service can report to its caller.
    console.error(`no report: ${result.outcome}, rule ${result.rule}: ${result.reason}${result.note}`);
    process.exitCode = 1;
  } else {
    console.log(JSON.stringify(JSON.parse(await download("/workspace/report.json"))));
  }
}

// The details of an error: ErrorInfo has Airlock's reason, which programs branch on (docs/reference/errors.md).
function explained(error: ConnectError): string {
  const reason = error.findDetails(ErrorInfoSchema)[0]?.reason ?? Code[error.code];
  const retry = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return `${error.rawMessage} (${reason}${retry ? `; try again in ${retry.seconds} s` : ""})`;
}

try {
  await report();
} catch (error) {
  console.error(`no report: ${error instanceof ConnectError ? explained(error) : error}`);
  process.exitCode = 1;
} finally {
  sessionManager.abort();
}
