-- Starts the server's process, and ends it if it no longer answers.
--
-- A live server returns its status at once, whatever the engine does. So if a request stays unanswered for some
-- seconds, this module requests the status. If that stays unanswered too, the server is frozen. Then it reads no
-- `shutdown` and handles no signal, so only SIGKILL ends it.

local config = require("dg_lsp.config")

local M = {}

---The time between two looks at the unanswered requests.
M.tick_ms = 1000
---Ticks without an answer after which the status is requested, and after which the server is frozen.
local ASK_AFTER, FROZEN_AFTER = 10, 20
---How long Neovim waits for an answer when it ends.
local QUIT_MS = 1000
local SIGTERM = 15

local STATUS = { command = "dgLsp.status", arguments = {} }

---@class dg_lsp.Process
---@field pid? integer nil after its end
---@field is_frozen boolean whether it was ended because it did not answer
---@field started_ms integer
---@field answered_ms integer when its last answer came
---@field silent_ticks integer ticks since its last answer
---@field is_ticking boolean

---By the client's `rpc`, which Neovim forgets with the client.
---@type table<vim.lsp.rpc.PublicClient, dg_lsp.Process>
local processes = setmetatable({}, { __mode = "k" })

---Return the time of day, which goes on while the machine sleeps.
---@return number milliseconds
function M.now_ms()
  local seconds, microseconds = vim.uv.gettimeofday()
  return seconds * 1000 + microseconds / 1000
end

---@return integer[]
local function children()
  return vim.api.nvim_get_proc_children(vim.uv.os_getpid())
end

---Start the server, as the `cmd` of a client does. Neovim itself does not tell the process id.
---@param dispatchers vim.lsp.rpc.Dispatchers
---@param client_config vim.lsp.ClientConfig
---@return vim.lsp.rpc.PublicClient
function M.start(dispatchers, client_config)
  local now = vim.uv.now()
  ---@type dg_lsp.Process
  local process =
    { is_frozen = false, started_ms = now, answered_ms = now, silent_ticks = 0, is_ticking = false }
  local on_exit = dispatchers.on_exit
  dispatchers.on_exit = function(code, signal)
    process.pid = nil
    -- Neovim shows a warning of its own for every signal but SIGTERM.
    on_exit(code, process.is_frozen and SIGTERM or signal)
  end
  local others = children()
  local rpc = vim.lsp.rpc.start(config.current.cmd, dispatchers, {
    cwd = client_config.cmd_cwd,
    env = vim.tbl_extend("force", config.variables(), client_config.cmd_env or {}),
    detached = client_config.detached,
  })
  process.pid = vim.iter(children()):find(function(pid)
    return not vim.list_contains(others, pid)
  end)
  processes[rpc] = process
  return rpc
end

---Return the process of a client; nil if the user's own configuration started it in another way.
---@param client vim.lsp.Client
---@return dg_lsp.Process?
function M.process(client)
  return processes[client.rpc]
end

---@param process dg_lsp.Process
local function kill(process)
  -- The command may be a script with the server as a child, so end the whole group that Neovim made for it.
  if process.pid and not vim.uv.kill(-process.pid, "sigkill") then
    vim.uv.kill(process.pid, "sigkill")
  end
end

---Count ticks as long as a request is unanswered. A cancelled request is one too, because a live server answers it.
---@param client vim.lsp.Client
---@param process dg_lsp.Process
local function tick(client, process)
  local due_ms = M.now_ms() + M.tick_ms
  vim.defer_fn(function()
    process.is_ticking = next(client.requests) ~= nil and not client.rpc.is_closing()
    if not process.is_ticking then
      return
    end
    -- A late tick does not count: the machine slept or Neovim was blocked, and an answer may wait to be read.
    if math.abs(M.now_ms() - due_ms) <= M.tick_ms then
      process.silent_ticks = process.silent_ticks + 1
      if process.silent_ticks == ASK_AFTER then
        client:request("workspace/executeCommand", STATUS, function() end)
      elseif process.silent_ticks == FROZEN_AFTER then
        process.is_frozen = true
        kill(process)
      end
    end
    tick(client, process)
  end, M.tick_ms)
end

local group = vim.api.nvim_create_augroup("dg-lsp-watchdog", {})

vim.api.nvim_create_autocmd("LspRequest", {
  group = group,
  callback = function(event)
    local client = vim.lsp.get_client_by_id(event.data.client_id)
    local process = client and M.process(client)
    if not client or not process then
      return
    end
    if event.data.request.type == "complete" then
      process.answered_ms, process.silent_ticks = vim.uv.now(), 0
    elseif event.data.request.type == "pending" and not process.is_ticking then
      process.is_ticking, process.silent_ticks = true, 0
      tick(client, process)
    end
  end,
})

-- Neovim does not wait for its servers when it ends, and a frozen one would go on without it.
vim.api.nvim_create_autocmd("VimLeavePre", {
  group = group,
  callback = function()
    ---@type table<dg_lsp.Process, boolean> whether a process has answered, for each that was asked
    local has_answered = {}
    for _, client in ipairs(vim.lsp.get_clients()) do
      local process = M.process(client)
      if process and process.pid then
        has_answered[process] = false
        client.rpc.request("workspace/executeCommand", STATUS, function()
          has_answered[process] = true
        end)
      end
    end
    vim.wait(QUIT_MS, function()
      return vim.iter(pairs(has_answered)):all(function(process, answer)
        return answer or not process.pid
      end)
    end, 10)
    -- A server that has not answered `initialize` yet is not asked, and has nothing to save.
    for _, process in pairs(processes) do
      if not has_answered[process] then
        kill(process)
      end
    end
  end,
})

return M
