/** Installs the server from this extension into a private environment, with progress, on request. */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { scripts } from "./locate";
import { selectedPython } from "./python";
import { variables } from "./serverProcess";
import { countPackages, stepOf } from "./steps";
import { CPU_INDEX, hasCpuTorch, hasUselessCuda, withoutTorch } from "./torch";

// Defined by the build: the wheel that is packed with this extension.
declare const WHEEL_NAME: string;
declare const WHEEL_SHA256: string;

const OLDEST_PYTHON = "3.11";
/** Where `python3` is too old, a later one may be installed next to it. */
const PYTHONS = ["python3.14", "python3.13", "python3.12", "python3.11"];
/** Ends with a sentence if this Python is too old or can't make environments. Debian has the modules for it in another package. */
const CHECK = `
import importlib.util, sys
name = sys.argv[1]
if sys.version_info < (${OLDEST_PYTHON.replace(".", ", ")}):
    sys.exit(f"dg-lsp needs Python ${OLDEST_PYTHON} or later, but {name} is {sys.version.split()[0]}")
if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
    sys.exit(f"{name} can't create environments; install its venv module (python3-venv on Debian and Ubuntu)")
`;
// Linux on x86_64, as docs/measurements.md says.
const SMALL_SIZE = "Downloads about 250 MB, takes 1.2 GB on the disk";
const LARGE_SIZE = "Takes about 5 GB on the disk";
const NEVER = new vscode.CancellationTokenSource().token;
let isInstalling = false;

/** The extension's folder with the wheel and the requirements file, and the path of the private environment. */
export interface Bundle {
  folder: string;
  environment: string;
}

/** Return whether the private environment has this extension's version of the server. */
export async function isCurrent({ environment }: Bundle): Promise<boolean> {
  return (await readFile(stampFile(environment), "utf-8").catch(() => "")) === WHEEL_SHA256;
}

/**
 * Install the server and return whether it worked; show a failure to the user, with a link to the log.
 *
 * `begin` is called after the questions, before anything is changed; it gets whether the environment is replaced by a new one.
 */
export async function install(bundle: Bundle, output: vscode.LogOutputChannel, begin: Begin): Promise<boolean> {
  if (isInstalling) {
    void vscode.window.showInformationMessage("dg-lsp is already being installed");
    return false;
  }
  isInstalling = true;
  try {
    return await installOnce(bundle, output, begin);
  } finally {
    isInstalling = false;
  }
}

type Begin = (isReplaced: boolean) => Promise<void>;

async function installOnce(bundle: Bundle, output: vscode.LogOutputChannel, begin: Begin): Promise<boolean> {
  const { environment, folder } = bundle;
  let isNew = !existsSync(environment);
  const older = `${environment}.old`;
  const [show, change, again] = ["Show Log", "Choose a Requirements File", "Install Another Build"];
  let remedies = [show];
  try {
    // Without Python, the question about torch would be for nothing.
    const python = await suitablePython(output);
    const requirements = await chooseRequirements(folder);
    if (!requirements) return false;
    // pip keeps an installed CPU build where torch with CUDA is required, and never removes the packages of CUDA.
    const isReplaced = !isNew && (await hasOtherTorch(environment, requirements));
    await begin(isReplaced);
    if (isReplaced) {
      await rm(older, { recursive: true, force: true });
      await rename(environment, older);
      isNew = true;
    }
    remedies = [show, change];
    await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: "Installing dg-lsp", cancellable: true },
      (progress, cancelled) => steps(bundle, python, requirements, output, progress, cancelled),
    );
    await rm(older, { recursive: true, force: true });
    return true;
  } catch (error) {
    // Remove a half-made environment, which would be used next time. An older one may still work.
    if (isNew) await rm(environment, { recursive: true, force: true });
    if (existsSync(older)) await rename(older, environment);
    if (error instanceof vscode.CancellationError) return false;
    output.error(String(error));
    const reason = error instanceof Error ? error.message : String(error);
    const hint = remedies.includes(change) ? " The setting dgLsp.client.requirements can name another requirements file." : "";
    if (error instanceof NoCpuBuildError) remedies = [again, ...remedies];
    const picked = await vscode.window.showErrorMessage(`dg-lsp could not be installed: ${reason}.${hint}`, ...remedies);
    if (picked === again) setTimeout(() => void vscode.commands.executeCommand("dgLsp.install"));
    if (picked === show) output.show();
    if (picked === change) await vscode.commands.executeCommand("workbench.action.openSettings", "dgLsp.client.requirements");
    return false;
  }
}

/** Return whether an environment has another build of torch than the user chose. A file of the user's own is never compared. */
async function hasOtherTorch(environment: string, { isCustom, cpuFile }: Requirements): Promise<boolean> {
  const libraries = path.join(environment, "lib");
  const versions = await readdir(libraries).catch(() => []);
  const files = await Promise.all(versions.map((version) => readdir(path.join(libraries, version, "site-packages")).catch(() => [])));
  const hasCpu = hasCpuTorch(files.flat());
  return !isCustom && hasCpu !== undefined && hasCpu !== (cpuFile !== undefined);
}

/** What pip installs beside dg-lsp. `cpuFile` requires torch's CPU build, which then replaces torch and CUDA in `file`. */
interface Requirements {
  file: string;
  isCustom: boolean;
  cpuFile?: string;
}

/** torch's CPU build is in no index that pip reaches. */
class NoCpuBuildError extends Error {
  constructor() {
    super(`torch's CPU build is neither in your pip's package index nor could it be had from ${new URL(CPU_INDEX).host}. Your pip's extra-index-url can name a mirror of it`);
  }
}

/** Return the user's requirements file or the extension's own; undefined if the user dismissed the question about torch. */
async function chooseRequirements(folder: string): Promise<Requirements | undefined> {
  const customFile = String(vscode.workspace.getConfiguration("dgLsp").get("client.requirements") ?? "").trim();
  if (customFile) return { file: path.resolve(customFile), isCustom: true };
  const own = { file: path.join(folder, "requirements.txt"), isCustom: false };
  // Other systems have only one build.
  if (process.platform !== "linux") return own;
  const small = { label: "Small: for the processor", detail: SMALL_SIZE };
  const large = { label: "Large: with CUDA, for an NVIDIA GPU", detail: LARGE_SIZE };
  const hasGpu = !hasUselessCuda(process.platform, existsSync);
  const picked = await vscode.window.showQuickPick(hasGpu ? [large, small] : [small, large], {
    title: `Install dg-lsp (${hasGpu ? "an" : "no"} NVIDIA GPU was found)`,
    placeHolder: "From your package index; the small torch else from download.pytorch.org",
    ignoreFocusOut: true,
  });
  return picked === small ? { ...own, cpuFile: path.join(folder, "requirements-cpu.txt") } : picked && own;
}

type Progress = vscode.Progress<{ message?: string; increment?: number }>;

async function steps(
  { folder, environment }: Bundle,
  python: string,
  { file, isCustom, cpuFile }: Requirements,
  output: vscode.LogOutputChannel,
  progress: Progress,
  cancelled: vscode.CancellationToken,
): Promise<void> {
  const wheel = path.join(folder, WHEEL_NAME);
  const sha256 = createHash("sha256").update(await readFile(wheel)).digest("hex");
  if (sha256 !== WHEEL_SHA256) throw new Error(`${wheel} is not the file that this extension was built with. Install the extension again`);
  progress.report({ message: "creating a Python environment" });
  await run([python, "-m", "venv", environment], output, cancelled);
  const pip = [path.join(scripts(environment), "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"];
  const listed = await readFile(file, "utf-8");
  const list = cpuFile === undefined ? listed : withoutTorch(listed);
  const total = countPackages(list) + (cpuFile === undefined ? 0 : 1);
  const onLine = (line: string) => {
    const step = stepOf(line);
    if (step) progress.report({ message: step.message, increment: step.isNewPackage ? 95 / Math.max(total, 1) : 0 });
  };
  const listFile = cpuFile === undefined ? file : path.join(environment, "requirements-others.txt");
  if (cpuFile !== undefined) {
    await writeFile(listFile, list);
    progress.report({ message: "downloading torch" });
    // First and by itself, so that nothing asks for another build.
    const cpu = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--extra-index-url", CPU_INDEX, "--requirement", cpuFile];
    await run([...pip, ...cpu], output, cancelled, onLine).catch((error: unknown) => {
      throw String(error).includes("No matching distribution") ? new NoCpuBuildError() : error;
    });
  }
  // The extension's requirements file has a hash for each file, so pip can enforce them.
  const strict = isCustom ? [] : ["--require-hashes", "--only-binary", ":all:"];
  progress.report({ message: cpuFile !== undefined ? "downloading dependencies" : "downloading dependencies; torch is large, so this takes minutes" });
  await run([...pip, ...strict, "--requirement", listFile], output, cancelled, onLine);
  progress.report({ message: "installing dg-lsp" });
  await run([...pip, "--no-deps", "--no-index", "--force-reinstall", wheel], output, cancelled);
  await writeFile(stampFile(environment), WHEEL_SHA256);
}

/** Return the first Python that can make the environment; throw the reason why the first one can't. */
async function suitablePython(output: vscode.LogOutputChannel): Promise<string> {
  const selected = await selectedPython();
  const first = selected ?? "python3";
  let reason: unknown;
  for (const python of [first, ...(selected === undefined ? PYTHONS : [])]) {
    try {
      await run([python, "-c", CHECK, path.basename(python)], output, NEVER);
      return python;
    } catch (error) {
      reason ??= error;
    }
  }
  throw reason;
}

/** Return the file that names the wheel of an environment. */
function stampFile(environment: string): string {
  return path.join(environment, "dg-lsp-wheel.sha256");
}

function run(
  [command = "", ...args]: string[],
  output: vscode.LogOutputChannel,
  cancelled: vscode.CancellationToken,
  onLine: (line: string) => void = () => undefined,
): Promise<void> {
  output.info([command, ...args].join(" "));
  return new Promise((resolve, reject) => {
    // Python and pip read no file of the root folder, as they might of the open one.
    const child = spawn(command, args, { cwd: "/", env: variables(), stdio: ["ignore", "pipe", "pipe"] });
    const listener = cancelled.onCancellationRequested(() => child.kill());
    let last = "";
    const readOutput = (data: Buffer) => {
      const text = data.toString().trimEnd();
      if (text) {
        last = text.split("\n").at(-1) ?? last;
        text.split("\n").forEach(onLine);
        output.info(text);
      }
    };
    child.stdout.on("data", readOutput);
    child.stderr.on("data", readOutput);
    child.on("error", (error: NodeJS.ErrnoException) => {
      listener.dispose();
      reject(error.code === "ENOENT" ? new Error(`${command} was not found; install Python ${OLDEST_PYTHON} or later`) : error);
    });
    child.on("close", (code) => {
      listener.dispose();
      if (cancelled.isCancellationRequested) reject(new vscode.CancellationError());
      else if (code === 0) resolve();
      else reject(new Error(last || `${command} ended with code ${code ?? "unknown"}`));
    });
  });
}
