/**
 * The TypeScript client of Airlock, over its HTTP API (docs/http.md).
 *
 *     const airlock = new Client("http://127.0.0.1:7480", { apiKey: process.env.AIRLOCK_API_KEY! });
 *     const result = await airlock.callTool("execute", { command: "echo hi" }, { thread: "t1" });
 *     console.log(text(result, "stdout"));
 *
 * Field names are those of the API. 64-bit integers are strings. Every failure is an AirlockError, but a tool call that
 * was denied or failed is a result.
 */

import type { components } from "./api.js";

type Schemas = components["schemas"];
export type Tool = Schemas["Tool"];
export type ToolResult = Schemas["ToolResult"];
export type ToolOutput = Schemas["ToolOutput"];
export type FileEntry = Schemas["FileEntry"];
export type Run = Schemas["Run"];
export type RunEvent = Schemas["Event"];
export type Process = Schemas["Process"];
export type Thread = Schemas["Thread"];
export type StartRunRequest = Schemas["StartRunRequest"];
export type StartProcessRequest = Schemas["StartProcessRequest"];
export type ReadProcessResponse = Schemas["ReadProcessResponse"];
export type Problem = Schemas["Problem"];

/** What the gateway or the connection answered instead. `reason` is one of docs/reference/errors.md. */
export class AirlockError extends Error {
  override readonly name = "AirlockError";
  readonly reason: string;
  readonly status: number;
  readonly code: string;
  readonly details: Record<string, string>;
  readonly violations: readonly { field?: string; message?: string }[];
  readonly retryAfterS: number | undefined;

  constructor(problem: Partial<Problem>, options?: ErrorOptions) {
    super(problem.detail ?? problem.title ?? "the gateway answered with an error", options);
    this.status = problem.status ?? 0;
    this.code = problem.code ?? (this.status === 404 ? "NOT_FOUND" : "UNKNOWN");
    this.reason = problem.reason ?? this.code;
    this.details = problem.details ?? {};
    this.violations = problem.violations ?? [];
    this.retryAfterS = problem.retry_after_s;
  }
}

export interface ClientOptions {
  /** A key or a token, or a function that returns a current one. */
  apiKey: string | (() => string | Promise<string>);
  /** Attempts of a call that is safe to repeat; 1 never repeats. Default 5. */
  attempts?: number;
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Aborting ends the call, and kills what it started. */
  signal?: AbortSignal;
  /** The gateway ends the call after this time, in seconds. */
  timeoutS?: number;
}

export interface ToolOptions extends CallOptions {
  thread?: string;
  /** Calls with the same id run once; the client makes one up for its own retries. */
  requestId?: string;
}

type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

interface Request extends CallOptions {
  query?: Query;
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  /** Whether the request may be sent again after a failure. */
  safe?: boolean;
}

export class Client {
  readonly #url: string;
  readonly #options: ClientOptions;

  constructor(url: string, options: ClientOptions) {
    this.#url = url.replace(/\/+$/, "");
    this.#options = options;
  }

  async listTools(options: CallOptions = {}): Promise<Tool[]> {
    return (await this.#json<{ tools: Tool[] }>("GET", "/v1/tools", options)).tools;
  }

  /** Run one tool call. */
  async callTool(name: string, args: Record<string, unknown>, options: ToolOptions = {}): Promise<ToolResult> {
    const json = called(args, options);
    const path = `/v1/tools/${encodeURIComponent(name)}:call`;
    return (await this.#json<{ result: ToolResult }>("POST", path, { ...options, json, safe: true })).result;
  }

  /** Run one tool call; yields its output as it arrives, and the result last. */
  async *streamToolCall(
    name: string,
    args: Record<string, unknown>,
    options: ToolOptions = {},
  ): AsyncGenerator<{ output: ToolOutput; result?: never } | { result: ToolResult; output?: never }> {
    const json = called(args, options);
    const path = `/v1/tools/${encodeURIComponent(name)}:stream`;
    for await (const { data } of this.#events("POST", path, { ...options, json })) yield data;
  }

  /** Return a file's bytes, or a part of them. */
  async readFile(
    thread: string,
    path: string,
    options: CallOptions & { offset?: number; limitBytes?: number } = {},
  ): Promise<Uint8Array> {
    return new Uint8Array(await (await this.#content(thread, path, options)).arrayBuffer());
  }

  /** Return a file as a stream of bytes. */
  async streamFile(thread: string, path: string, options: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const { body } = await this.#content(thread, path, options);
    return body ?? new ReadableStream({ start: (controller) => controller.close() });
  }

  /** Replace a file atomically; returns its size. */
  async writeFile(thread: string, path: string, data: BodyInit, options: CallOptions = {}): Promise<number> {
    const request = { ...options, body: data, query: { path }, safe: !(data instanceof ReadableStream) };
    const answer = await this.#json<{ size_bytes: number }>("PUT", `${threadPath(thread)}/content`, request);
    return answer.size_bytes;
  }

  /** Yield the entries of a directory, by default /workspace; with a pattern such as `*.ts`, those that match. */
  listFiles(
    thread: string,
    path = "",
    options: CallOptions & { pattern?: string } = {},
  ): AsyncGenerator<FileEntry> {
    const query = { path, pattern: options.pattern };
    return this.#pages<FileEntry>(`${threadPath(thread)}/files`, "files", { ...options, query });
  }

  async statFile(thread: string, path: string, options: CallOptions = {}): Promise<FileEntry> {
    const request = { ...options, query: { path } };
    return (await this.#json<{ file: FileEntry }>("GET", `${threadPath(thread)}/files:stat`, request)).file;
  }

  async removeFile(
    thread: string,
    path: string,
    options: CallOptions & { recursive?: boolean; missingOk?: boolean } = {},
  ): Promise<void> {
    const query = { path, recursive: options.recursive, missing_ok: options.missingOk };
    await this.#json("DELETE", `${threadPath(thread)}/files`, { ...options, query, safe: options.missingOk ?? false });
  }

  async makeDirectory(thread: string, path: string, options: CallOptions = {}): Promise<void> {
    const request = { ...options, json: { path }, safe: true };
    await this.#json("POST", `${threadPath(thread)}/files:makeDirectory`, request);
  }

  async startRun(task: string, fields: Omit<StartRunRequest, "task"> = {}, options: CallOptions = {}): Promise<Run> {
    const json = { task, request_id: crypto.randomUUID(), ...fields };
    return (await this.#json<{ run: Run }>("POST", "/v1/runs", { ...options, json, safe: true })).run;
  }

  /** Yield a run's events, from the first one unless told otherwise; resumes after a broken connection. */
  async *watchRun(runId: string, options: CallOptions & { fromSequence?: number } = {}): AsyncGenerator<RunEvent> {
    let next = options.fromSequence ?? 1;
    for (let attempt = 1; ; attempt++) {
      try {
        const query = { from_sequence: next };
        for await (const { data } of this.#events("GET", `${runPath(runId)}:watch`, { ...options, query })) {
          attempt = 1;
          next = Number(data.event.sequence) + 1;
          yield data.event;
        }
        return;
      } catch (error) {
        await this.#pause(error, attempt, options.signal);
      }
    }
  }

  /** Start a run and yield its events. */
  async *run(task: string, fields: Omit<StartRunRequest, "task"> = {}, options: CallOptions = {}): AsyncGenerator<RunEvent> {
    yield* this.watchRun((await this.startRun(task, fields, options)).id, options);
  }

  async getRun(runId: string, options: CallOptions = {}): Promise<Run> {
    return (await this.#json<{ run: Run }>("GET", runPath(runId), options)).run;
  }

  listRuns(query: Query = {}, options: CallOptions = {}): AsyncGenerator<Run> {
    return this.#pages<Run>("/v1/runs", "runs", { ...options, query });
  }

  async cancelRun(runId: string, options: CallOptions = {}): Promise<Run> {
    return (await this.#json<{ run: Run }>("POST", `${runPath(runId)}:cancel`, { ...options, safe: true })).run;
  }

  listThreads(query: Query = {}, options: CallOptions = {}): AsyncGenerator<Thread> {
    return this.#pages<Thread>("/v1/threads", "threads", { ...options, query });
  }

  /** Delete a thread, its files and its sandbox. */
  async deleteThread(thread: string, options: CallOptions = {}): Promise<void> {
    await this.#json("DELETE", threadPath(thread), options);
  }

  /** Start a background process. */
  async startProcess(
    thread: string,
    argv: readonly string[],
    fields: Omit<StartProcessRequest, "program"> & { env?: Record<string, string>; cwd?: string } = {},
    options: CallOptions = {},
  ): Promise<Process> {
    const { env, cwd, ...rest } = fields;
    const program = { argv, ...(env && { env }), ...(cwd && { cwd }) };
    const json = { request_id: crypto.randomUUID(), ...rest, program };
    const path = `${threadPath(thread)}/processes`;
    return (await this.#json<{ process: Process }>("POST", path, { ...options, json, safe: true })).process;
  }

  listProcesses(thread: string, options: CallOptions = {}): AsyncGenerator<Process> {
    return this.#pages<Process>(`${threadPath(thread)}/processes`, "processes", options);
  }

  /** Yield a process' output from an offset; with `follow`, up to its end. */
  async *readProcess(
    thread: string,
    id: string,
    options: CallOptions & { stderr?: boolean; offset?: number; follow?: boolean } = {},
  ): AsyncGenerator<ReadProcessResponse> {
    const query = { stderr: options.stderr, offset: options.offset, follow: options.follow };
    for await (const { data } of this.#events("GET", `${processPath(thread, id)}:read`, { ...options, query })) yield data;
  }

  /** Write to a process' standard input; with `end`, close it. */
  async writeProcess(
    thread: string,
    id: string,
    data: string | Uint8Array,
    options: CallOptions & { end?: boolean } = {},
  ): Promise<void> {
    const content = typeof data === "string" ? { data_text: data } : { data: base64(data) };
    const json = { ...content, end: options.end ?? false, request_id: crypto.randomUUID() };
    await this.#json("POST", `${processPath(thread, id)}:write`, { ...options, json });
  }

  async signalProcess(thread: string, id: string, signal: number, options: CallOptions & { tree?: boolean } = {}): Promise<void> {
    const json = { signal, tree: options.tree ?? false };
    const { signal: abort, timeoutS } = options;
    const call = { ...(abort && { signal: abort }), ...(timeoutS !== undefined && { timeoutS }) };
    await this.#json("POST", `${processPath(thread, id)}:signal`, { ...call, json });
  }

  async waitProcess(thread: string, id: string, options: CallOptions = {}): Promise<Process> {
    const request = { ...options, safe: true };
    return (await this.#json<{ process: Process }>("POST", `${processPath(thread, id)}:wait`, request)).process;
  }

  async removeProcess(thread: string, id: string, options: CallOptions = {}): Promise<void> {
    await this.#json("DELETE", processPath(thread, id), options);
  }

  /** Call any path of /openapi.json that answers with JSON. */
  async request<T>(method: string, path: string, request: Omit<Request, "safe"> = {}): Promise<T> {
    return this.#json<T>(method, path, request);
  }

  #content(
    thread: string,
    path: string,
    options: CallOptions & { offset?: number; limitBytes?: number },
  ): Promise<Response> {
    const query = { path, offset: options.offset, limit_bytes: options.limitBytes };
    return this.#send("GET", `${threadPath(thread)}/content`, { ...options, query });
  }

  async #json<T = unknown>(method: string, path: string, request: Request): Promise<T> {
    return (await (await this.#send(method, path, request)).json()) as T;
  }

  async *#pages<T>(path: string, items: string, request: Request): AsyncGenerator<T> {
    let token = "";
    do {
      const query = { ...request.query, page_token: token };
      const page = await this.#json<Record<string, unknown>>("GET", path, { ...request, query });
      yield* page[items] as T[];
      token = page["next_page_token"] as string;
    } while (token);
  }

  /** Yield the server-sent events of an answer; an error event is thrown. */
  async *#events(method: string, path: string, request: Request): AsyncGenerator<{ data: any }> {
    const response = await this.#send(method, path, { ...request, headers: { accept: "text/event-stream" } });
    let ended = false;
    try {
      for await (const { event, data } of eventsOf(response)) {
        if (event === "error") throw new AirlockError(JSON.parse(data));
        if (event === "end") {
          ended = true;
          return;
        }
        yield { data: JSON.parse(data) };
      }
    } catch (error) {
      throw known(error, request.signal);
    }
    if (!ended) throw new AirlockError({ status: 503, code: "UNAVAILABLE", detail: "the connection broke" });
  }

  /** Send a request, again after failures if it is safe to repeat, and return an answer that is no error. */
  async #send(method: string, path: string, request: Request): Promise<Response> {
    const safe = request.safe ?? method === "GET";
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#once(method, path, request);
      } catch (error) {
        if (!safe) throw error;
        await this.#pause(error, attempt, request.signal);
      }
    }
  }

  async #once(method: string, path: string, request: Request): Promise<Response> {
    const { apiKey, fetch: send = fetch } = this.#options;
    const key = typeof apiKey === "string" ? apiKey : await apiKey();
    const headers: Record<string, string> = { authorization: `Bearer ${key}`, ...request.headers };
    if (request.timeoutS !== undefined) headers["grpc-timeout"] = `${Math.ceil(request.timeoutS * 1000)}m`;
    const init: RequestInit & { duplex?: "half" } = { method, headers, redirect: "error" };
    if (request.signal) init.signal = request.signal;
    if (request.json !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(request.json);
    } else if (request.body !== undefined) {
      init.body = request.body;
      if (request.body instanceof ReadableStream) init.duplex = "half";
    }
    let response: Response;
    try {
      response = await send(`${this.#url}${path}${queryOf(request.query)}`, init);
    } catch (error) {
      throw known(error, request.signal);
    }
    if (response.ok) return response;
    const said = await response.text();
    throw new AirlockError(problemOf(said, response));
  }

  /** Wait before the next attempt; throws the error if there is none. */
  async #pause(error: unknown, attempt: number, signal?: AbortSignal): Promise<void> {
    const transient = error instanceof AirlockError && ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"].includes(error.code);
    const helps = transient && (error.code !== "RESOURCE_EXHAUSTED" || error.retryAfterS !== undefined);
    if (!helps || attempt >= (this.#options.attempts ?? 5) || signal?.aborted) throw error;
    const limitMs = Math.min(2000, 100 * 2 ** (attempt - 1));
    const pauseMs = Math.max(Math.random() * limitMs, (error.retryAfterS ?? 0) * 1000);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}

type Bytes<T> = { [K in keyof T]: K extends `${infer N}_text` ? (N extends keyof T ? N : never) : never }[keyof T];

/** Return a field of bytes, such as `stdout` of a result. */
export function bytes<T extends object>(message: T, field: NonNullable<Bytes<T>> & string): Uint8Array {
  const fields = message as Record<string, string | undefined>;
  const asText = fields[`${field}_text`];
  if (asText !== undefined) return new TextEncoder().encode(asText);
  return Uint8Array.from(atob(fields[field] ?? ""), (character) => character.charCodeAt(0));
}

/** Return a field of bytes as text; bytes that are not UTF-8 are replaced. */
export function text<T extends object>(message: T, field: NonNullable<Bytes<T>> & string): string {
  return new TextDecoder().decode(bytes(message, field));
}

function called(args: Record<string, unknown>, options: ToolOptions): unknown {
  return { thread: options.thread ?? "default", arguments: args, request_id: options.requestId ?? crypto.randomUUID() };
}

function threadPath(thread: string): string {
  return `/v1/threads/${encodeURIComponent(thread)}`;
}

function runPath(id: string): string {
  return `/v1/runs/${encodeURIComponent(id)}`;
}

function processPath(thread: string, id: string): string {
  return `${threadPath(thread)}/processes/${encodeURIComponent(id)}`;
}

function queryOf(query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== "") given.append(name, String(one));
    }
  }
  return given.size ? `?${given}` : "";
}

function base64(data: Uint8Array): string {
  let characters = "";
  for (let at = 0; at < data.length; at += 8192) characters += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(characters);
}

function known(error: unknown, signal?: AbortSignal): unknown {
  if (error instanceof AirlockError || signal?.aborted) return error;
  const why = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error);
  const detail = `the gateway does not answer: ${why}`;
  return new AirlockError({ status: 503, code: "UNAVAILABLE", reason: "UNAVAILABLE", detail }, { cause: error });
}

function problemOf(said: string, response: Response): Partial<Problem> {
  try {
    return JSON.parse(said) as Problem;
  } catch {
    return { status: response.status, detail: `${response.status} ${response.statusText}: no answer of a gateway` };
  }
}

async function* eventsOf(response: Response): AsyncGenerator<{ event: string; data: string }> {
  if (!response.body) return;
  let rest = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream()) as unknown as AsyncIterable<string>) {
    const blocks = (rest + piece).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      let event = "message";
      const data: string[] = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) yield { event, data: data.join("\n") };
    }
  }
}
