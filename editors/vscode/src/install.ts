/** Install dg-lsp into an environment of this extension's own, with progress, when the user wishes so. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { scripts } from "./locate";
import { pythonOf } from "./python";

let isInstalling = false;

/** Return whether it was installed; a failure is told to the user, with the output to read. */
export async function install(environment: string, output: vscode.LogOutputChannel): Promise<boolean> {
  if (isInstalling) {
    void vscode.window.showInformationMessage("dg-lsp: it is being installed already");
    return false;
  }
  isInstalling = true;
  try {
    return await installOnce(environment, output);
  } finally {
    isInstalling = false;
  }
}

async function installOnce(environment: string, output: vscode.LogOutputChannel): Promise<boolean> {
  const python = (await pythonOf()) ?? "python3";
  const wanted = String(vscode.workspace.getConfiguration("dgLsp").get("client.package") ?? "dg-lsp[engine]");
  const isNew = !existsSync(environment);
  const inside = path.join(scripts(environment), "python");
  try {
    await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: "Installing dg-lsp", cancellable: true },
      async (progress, cancelled) => {
        progress.report({ message: "making a Python environment" });
        await run(python, ["-m", "venv", environment], output, cancelled);
        progress.report({ message: `pip install ${wanted}; torch is large, this takes minutes` });
        await run(inside, ["-m", "pip", "install", "--disable-pip-version-check", wanted], output, cancelled);
      },
    );
    return true;
  } catch (error) {
    // Half an environment would be found the next time; one that was there before may still work.
    if (isNew) await rm(environment, { recursive: true, force: true });
    if (error instanceof vscode.CancellationError) return false;
    output.error(String(error));
    const [show, change] = ["Show Output", "Choose a Package"];
    const reason = error instanceof Error ? error.message : String(error);
    const message = `dg-lsp could not be installed: ${reason}. The setting dgLsp.client.package may name a checkout to install.`;
    const picked = await vscode.window.showErrorMessage(message, show, change);
    if (picked === show) output.show();
    if (picked === change) await vscode.commands.executeCommand("workbench.action.openSettings", "dgLsp.client.package");
    return false;
  }
}

function run(command: string, args: string[], output: vscode.LogOutputChannel, cancelled: vscode.CancellationToken): Promise<void> {
  output.info([command, ...args].join(" "));
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"] });
    const end = cancelled.onCancellationRequested(() => child.kill());
    let last = "";
    const take = (data: Buffer) => {
      const text = data.toString().trimEnd();
      if (text) {
        last = text.split("\n").at(-1) ?? last;
        output.info(text);
      }
    };
    child.stdout.on("data", take);
    child.stderr.on("data", take);
    child.on("error", (error: NodeJS.ErrnoException) => {
      end.dispose();
      reject(error.code === "ENOENT" ? new Error(`there is no ${command}; Python 3.11 or later is needed`) : error);
    });
    child.on("close", (code) => {
      end.dispose();
      if (cancelled.isCancellationRequested) reject(new vscode.CancellationError());
      else if (code === 0) resolve();
      else reject(new Error(last || `${command} ended with code ${code ?? "unknown"}`));
    });
  });
}
