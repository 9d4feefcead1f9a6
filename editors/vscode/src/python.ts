/** The Python environment that is selected in the Python extension, if that is installed. */
import * as vscode from "vscode";

/** The parts of the Python extension's API that are used here. */
interface PythonApi {
  readonly environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { readonly path: string };
    resolveEnvironment(path: { readonly path: string }): Promise<{ readonly executable: { readonly uri?: vscode.Uri } } | undefined>;
    readonly onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

async function api(): Promise<PythonApi | undefined> {
  const extension = vscode.extensions.getExtension<PythonApi>("ms-python.python");
  if (!extension) return undefined;
  try {
    const exports = extension.isActive ? extension.exports : await extension.activate();
    // Another version may export something else.
    return "environments" in exports ? exports : undefined;
  } catch {
    return undefined;
  }
}

/** Return the interpreter of the selected environment; undefined without one, and in an untrusted workspace. */
export async function selectedPython(): Promise<string | undefined> {
  if (!vscode.workspace.isTrusted) return undefined;
  const python = await api();
  if (!python) return undefined;
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  try {
    const environment = await python.environments.resolveEnvironment(python.environments.getActiveEnvironmentPath(folder));
    return environment?.executable.uri?.fsPath;
  } catch {
    // After an error in the Python extension, the other places are still searched.
    return undefined;
  }
}

/** Call back when the user selects another environment. */
export async function onPythonChange(callback: () => void): Promise<vscode.Disposable> {
  const python = await api();
  return python?.environments.onDidChangeActiveEnvironmentPath(callback) ?? new vscode.Disposable(() => undefined);
}
