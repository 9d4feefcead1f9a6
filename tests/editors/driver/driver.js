// For tests only: what is posted to 127.0.0.1:$DRIVER_PORT is run as the body of a function of `vscode`; the answer is JSON.
// It listens only where a test has set the port and a token.
const http = require("node:http");
const vscode = require("vscode");

const AsyncFunction = Object.getPrototypeOf(async () => {}).constructor;
let server;

exports.activate = () => {
  const port = Number(process.env.DRIVER_PORT);
  const token = process.env.DRIVER_TOKEN;
  if (!port || !token) return;
  server = http.createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data));
    request.on("end", async () => {
      if (request.headers.authorization !== token) {
        response.writeHead(403).end();
        return;
      }
      try {
        const value = await new AsyncFunction("vscode", body)(vscode);
        response.end(JSON.stringify({ value: value ?? null }));
      } catch (error) {
        response.end(JSON.stringify({ error: String(error?.stack ?? error) }));
      }
    });
  });
  const listen = () => server.listen(port, "127.0.0.1");
  // After a reload the old window's extensions have the port until they end.
  server.on("error", () => setTimeout(listen, 100));
  listen();
};

exports.deactivate = () => server?.close();
