/** The Python environment that the user has chosen in the Python extension, where that is installed. */
import * as vscode from "vscode";

/** As much of the Python extension's API as is used here. */
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
    const found = extension.isActive ? extension.exports : await extension.activate();
    // Another version, or another extension of that name, may export something else.
    return "environments" in found ? found : undefined;
  } catch {
    return undefined;
  }
}

/** Return the interpreter of the chosen environment; undefined without one, and where the workspace is not trusted. */
export async function pythonOf(): Promise<string | undefined> {
  if (!vscode.workspace.isTrusted) return undefined;
  const python = await api();
  if (!python) return undefined;
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  try {
    const environment = await python.environments.resolveEnvironment(python.environments.getActiveEnvironmentPath(folder));
    return environment?.executable.uri?.fsPath;
  } catch {
    // What fails there must not keep us from looking elsewhere.
    return undefined;
  }
}

/** Call back when the user chooses another environment. */
export async function whenPythonChanges(heard: () => void): Promise<vscode.Disposable> {
  const python = await api();
  return python?.environments.onDidChangeActiveEnvironmentPath(heard) ?? new vscode.Disposable(() => undefined);
}
