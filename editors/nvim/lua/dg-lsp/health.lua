-- :checkhealth dg-lsp: what is needed, what is there, and what to do about the rest.

local M = {}

---@param command string[]
---@return vim.SystemCompleted?
local function run(command)
  local ok, process = pcall(vim.system, command, { text = true, timeout = 20000 })
  return ok and process:wait() or nil
end

local function check_command()
  local health, config = vim.health, require("dg_lsp.config")
  local name = config.current.cmd[1]
  if vim.fn.executable(name) == 0 then
    health.error(("%s can't be run"):format(name), {
      "install it in a Python environment: pip install '/path/to/dg-lsp[engine]'",
      "start Neovim with that environment switched on, or name the program:",
      "require('dg_lsp').setup({ cmd = { '/path/to/dg-lsp', 'serve' } })",
    })
    return
  end
  health.ok(("%s is %s"):format(name, vim.fn.exepath(name)))
  if #config.current.cmd ~= 2 or config.current.cmd[2] ~= "serve" then
    health.info("the server is started with: " .. table.concat(config.current.cmd, " "))
    return
  end
  local done = run({ name, "--version" })
  if done and done.code == 0 then
    health.ok(vim.trim(done.stdout))
  else
    health.error(("%s --version fails"):format(name), { vim.trim(done and done.stderr or "") })
  end
end

local function check_server()
  local health, server = vim.health, require("dg_lsp.server")
  if not vim.lsp.is_enabled(server.NAME) then
    health.warn("dg-lsp is not switched on", { 'call require("dg_lsp").setup()' })
    return
  end
  local clients = vim.lsp.get_clients({ name = server.NAME })
  if #clients == 0 then
    health.info("no server runs; one is started for the first buffer of a filetype in `filetypes`")
  end
  for _, client in ipairs(clients) do
    local buffers = vim.tbl_keys(client.attached_buffers)
    local bufnr = buffers[1]
    health.ok(("a server runs for %d buffers, positions in %s"):format(#buffers, client.offset_encoding))
    local status = bufnr and require("dg_lsp.status").current(bufnr)
    if status and status.state == "failed" then
      health.error(status.message, { "run `dg-lsp doctor` in a terminal", ":Dg restart tries again" })
    elseif status then
      health.ok(("the engine is %s, with model %s"):format(status.state, status.model))
    end
    if bufnr and not require("dg_lsp.ghost").is_whole(bufnr) then
      health.warn("cycling and explicit requests are not there: this Neovim differs inside from 0.12.4")
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
  health.info("no key is mapped to <Plug>(dg-lsp-accept) alone; :help dg-lsp-maps suggests some")
end

function M.check()
  vim.health.start("dg-lsp")
  if vim.fn.has("nvim-0.12") == 0 then
    vim.health.error("Neovim 0.12 or later is needed, for vim.lsp.inline_completion")
    return
  end
  vim.health.ok("Neovim " .. tostring(vim.version()))
  check_command()
  check_server()
  check_maps()
end

return M
