-- :checkhealth dg_lsp: checks the program, the server and the keys, and says how to fix each problem.

local M = {}

---@param command string[]
---@return vim.SystemCompleted?
local function run(command)
  local ok, process =
    pcall(vim.system, command, { env = require("dg_lsp.config").variables(), text = true, timeout = 20000 })
  return ok and process:wait() or nil
end

local function check_command()
  local health, config = vim.health, require("dg_lsp.config")
  local name = config.current.cmd[1]
  if vim.fn.executable(name) == 0 then
    health.error(("%s can't be run"):format(name), {
      "install it: pipx install /path/to/dg-lsp && pipx ensurepath",
      "run dg-lsp setup in a new terminal, and start Neovim there; or set the path of the program:",
      "require('dg_lsp').setup({ cmd = { '/path/to/dg-lsp', 'serve' } })",
    })
    return
  end
  health.ok(("%s is %s"):format(name, vim.fn.exepath(name)))
  if #config.current.cmd ~= 2 or config.current.cmd[2] ~= "serve" then
    health.info("the server is started with: " .. table.concat(config.current.cmd, " "))
    return
  end
  local result = run({ name, "--version" })
  if result and result.code == 0 then
    health.ok(vim.trim(result.stdout))
  else
    health.error(("%s --version failed"):format(name), { vim.trim(result and result.stderr or "") })
  end
end

---@param status dg_lsp.Status
local function check_status(status)
  local health = vim.health
  if status.state == "failed" then
    health.error(status.message, { "run `dg-lsp doctor` in a terminal", ":Dg restart restarts it" })
  else
    health.ok(("the engine is %s, with model %s"):format(status.state, status.model))
  end
  for _, problem in ipairs(status.problems) do
    health.warn(problem)
  end
  if status.offer then
    health.info(require("dg_lsp.pull").sentence(status.offer))
  end
  local statuses = require("dg_lsp.status")
  if statuses.is_paused(status) then
    health.info(("suggestions are paused: %s; :Dg resume ends a pause"):format(statuses.reason(status)))
  end
end

local function check_server()
  local health, server = vim.health, require("dg_lsp.server")
  if not vim.lsp.is_enabled(server.NAME) then
    -- Without the program `setup` enables nothing. The report names the missing program already.
    if vim.fn.executable(require("dg_lsp.config").current.cmd[1]) == 0 then
      return
    end
    health.warn("dg-lsp is not enabled", { 'call require("dg_lsp").setup()' })
    return
  end
  local clients = vim.lsp.get_clients({ name = server.NAME })
  if #clients == 0 and server.why_ended then
    health.error(server.why_ended)
  elseif #clients == 0 then
    health.info("no server is running; it starts with the first buffer of a filetype in `filetypes`")
  end
  for _, client in ipairs(clients) do
    local buffers = vim.tbl_keys(client.attached_buffers)
    local bufnr = buffers[1]
    local count = #buffers == 1 and "1 buffer" or ("%d buffers"):format(#buffers)
    health.ok(("a server is running for %s, with positions in %s"):format(count, client.offset_encoding))
    local status = bufnr and require("dg_lsp.status").current(bufnr)
    if status then
      check_status(status)
    end
    if bufnr and not require("dg_lsp.ghost").has_completor(bufnr) then
      health.warn(
        "cycling and explicit requests do not work, because this Neovim's internals differ from 0.12.4"
      )
    end
  end
end

local function check_maps()
  local health = vim.health
  for _, map in ipairs(vim.api.nvim_get_keymap("i")) do
    local target = map.rhs or ""
    if target:find("<Plug>(dg-lsp-accept)", 1, true) then
      health.ok(("%s accepts suggestions"):format(map.lhs))
      return
    end
  end
  health.info("no key is mapped to only <Plug>(dg-lsp-accept); :help dg-lsp-maps suggests mappings")
end

function M.check()
  vim.health.start("dg-lsp")
  if vim.fn.has("nvim-0.12") == 0 then
    vim.health.error("dg-lsp needs Neovim 0.12 or later, for vim.lsp.inline_completion")
    return
  end
  vim.health.ok("Neovim " .. tostring(vim.version()))
  check_command()
  check_server()
  check_maps()
end

return M
