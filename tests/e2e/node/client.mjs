// Drives a server over its standard streams with Microsoft's own client of the protocol, and prints what it saw, one JSON
// object a line. Arguments: the folder with node_modules, a file to open, then the server's command.
// Knows how an editor talks; what is right is asserted by tests/e2e/test_node_client.py.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, scene, command, ...args] = process.argv.slice(2);
const lsp = createRequire(join(modules, "package.json"))("vscode-languageserver-protocol/node");

const server = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const exited = new Promise((resolve) => server.once("exit", resolve));
const connection = lsp.createProtocolConnection(
  new lsp.StreamMessageReader(server.stdout),
  new lsp.StreamMessageWriter(server.stdin),
);
const tell = (what, value) => console.log(JSON.stringify({ what, value }));

const settings = { completion: { debounce: 0, threshold: 0, deadline: 0, speculate: false } };
const { text, line, character, stub } = JSON.parse(readFileSync(scene, "utf8"));
const uri = "untitled:node.py";
const document = { uri, version: 1, text };
let states = [];
let drafts = 0;

/** Resolve as soon as a notification or request makes the check true. */
const waiting = [];
const until = (check) => new Promise((resolve) => (check() ? resolve() : waiting.push([check, resolve])));
const heard = () => {
  for (const entry of [...waiting]) {
    if (entry[0]()) {
      waiting.splice(waiting.indexOf(entry), 1);
      entry[1]();
    }
  }
};

connection.onError(([error]) => tell("error", String(error)));
connection.onUnhandledNotification((message) => tell("unhandled", message.method));
connection.onRequest(lsp.ConfigurationRequest.type, ({ items }) => items.map(() => settings));
connection.onRequest(lsp.RegistrationRequest.type, () => undefined);
const progress = [];
connection.onRequest(lsp.WorkDoneProgressCreateRequest.type, ({ token }) => {
  connection.onProgress(lsp.WorkDoneProgress.type, token, (value) => {
    progress.push(value.kind);
    heard();
  });
});
connection.onNotification("dgLsp/status", (status) => {
  states.push(status.state);
  heard();
});
connection.onNotification("dgLsp/draft", () => {
  drafts += 1;
});
connection.onRequest(lsp.ApplyWorkspaceEditRequest.type, ({ edit }) => {
  const [change] = edit.documentChanges;
  tell("applyEdit", { version: change.textDocument.version, current: document.version, edits: change.edits });
  if (change.textDocument.version !== document.version) {
    return { applied: false };
  }
  for (const each of change.edits) {
    edited(each.range, each.newText);
  }
  return { applied: true };
});

const offset = ({ line, character }) =>
  document.text.split("\n").slice(0, line).reduce((sum, each) => sum + each.length + 1, 0) + character;

/** Change the document here and tell the server. */
function edited(range, newText) {
  document.text = document.text.slice(0, offset(range.start)) + newText + document.text.slice(offset(range.end));
  document.version += 1;
  connection.sendNotification(lsp.DidChangeTextDocumentNotification.type, {
    textDocument: { uri, version: document.version },
    contentChanges: [{ range, text: newText }],
  });
}

const inline = (position, triggerKind, token) =>
  connection.sendRequest(
    lsp.InlineCompletionRequest.type,
    { textDocument: { uri }, position, context: { triggerKind } },
    token,
  );

connection.listen();
const { capabilities, serverInfo } = await connection.sendRequest(lsp.InitializeRequest.type, {
  processId: process.pid,
  clientInfo: { name: "node" },
  rootUri: null,
  workspaceFolders: null,
  capabilities: {
    general: { positionEncodings: [lsp.PositionEncodingKind.UTF16] },
    textDocument: {
      inlineCompletion: { dynamicRegistration: true },
      codeAction: {
        codeActionLiteralSupport: { codeActionKind: { valueSet: [] } },
        dataSupport: true,
        resolveSupport: { properties: ["edit"] },
      },
    },
    workspace: { configuration: true, applyEdit: true, workspaceEdit: { documentChanges: true } },
    window: { workDoneProgress: true },
    experimental: { dgLsp: { status: true, draft: true } },
  },
});
tell("initialize", { capabilities, name: serverInfo.name });
await connection.sendNotification(lsp.InitializedNotification.type, {});
await until(() => states.at(-1) === "ready" && capabilities.inlineCompletionProvider);

await connection.sendNotification(lsp.DidOpenTextDocumentNotification.type, {
  textDocument: { uri, languageId: "python", version: 1, text },
});
const cursor = { line, character };
const automatic = await inline(cursor, lsp.InlineCompletionTriggerKind.Automatic);
tell("automatic", automatic.items);
edited({ start: cursor, end: cursor }, automatic.items[0].insertText.slice(0, 2));
const later = { line, character: character + 2 };
tell("typed through", (await inline(later, lsp.InlineCompletionTriggerKind.Automatic)).items);
tell("invoked", (await inline(later, lsp.InlineCompletionTriggerKind.Invoked)).items);

edited({ start: later, end: later }, "\n    x = ");
const source = new lsp.CancellationTokenSource();
const cancelled = inline({ line: line + 1, character: 8 }, lsp.InlineCompletionTriggerKind.Automatic, source.token);
source.cancel();
tell("cancelled", await cancelled.then(() => null, (error) => error.code));

edited({ start: { line: 0, character: 0 }, end: { line: 1e6, character: 0 } }, stub);
const where = { line: stub.split("\n").findIndex((each) => each.includes("NotImplementedError")), character: 4 };
const actions = await connection.sendRequest(lsp.CodeActionRequest.type, {
  textDocument: { uri },
  range: { start: where, end: where },
  context: { diagnostics: [] },
});
tell("actions", actions.map((action) => action.title));
const resolved = await connection.sendRequest(lsp.CodeActionResolveRequest.type, actions[0]);
tell("resolved", resolved.edit.documentChanges[0].textDocument.version === document.version);
await until(() => progress.at(-1) === "end");
tell("progress", [progress[0], progress.at(-1), drafts > 0]);
const run = { command: "dgLsp.fill", arguments: [actions[0].data] };
tell("command", await connection.sendRequest(lsp.ExecuteCommandRequest.type, run));
tell("text", document.text);
tell("stale", await connection.sendRequest(lsp.CodeActionResolveRequest.type, actions[0]).then(() => null, (error) => error.code));
tell("status", (await connection.sendRequest(lsp.ExecuteCommandRequest.type, { command: "dgLsp.status" })).state);
await connection.sendNotification(lsp.DidCloseTextDocumentNotification.type, { textDocument: { uri } });
await connection.sendRequest(lsp.ShutdownRequest.type);
await connection.sendNotification(lsp.ExitNotification.type);
tell("exit", await exited);
connection.dispose();
