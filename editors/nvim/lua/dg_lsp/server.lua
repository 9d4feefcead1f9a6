-- The running server: finds its client, sends it new settings, and restarts it after a crash or when it was frozen.

local config = require("dg_lsp.config")
local watchdog = require("dg_lsp.watchdog")

local M = {}

M.NAME = "dg_lsp"

local CRASH_WINDOW_MS = 5 * 60 * 1000
---Times of the crashes within the window.
---@type number[]
local crashes = {}

---How many servers in a row were frozen. One that answered for longer than the window interrupts the row.
local n_frozen = 0

---Why no server is started until :Dg restart; nil if one may be started.
---@type string?
M.why_ended = nil
local SHORT_WHY_ENDED = "the server froze and was ended; :Dg restart starts it"

---Return the client of a buffer, by default the current one; nil without a client.
---@param bufnr? integer
---@return vim.lsp.Client?
function M.client(bufnr)
  return vim.lsp.get_clients({ name = M.NAME, bufnr = bufnr or 0 })[1]
end

---Return the client's buffer with a URI; nil if it has none. (Neovim's own function would create a missing buffer, and
---would take a buffer without a name for the root directory.)
---@param client vim.lsp.Client
---@param uri string
---@return integer?
function M.buffer(client, uri)
  return vim.iter(pairs(client.attached_buffers)):find(function(bufnr)
    return vim.api.nvim_buf_is_loaded(bufnr) and vim.uri_from_bufnr(bufnr) == uri
  end)
end

---Return whether a buffer has no name while another such buffer uses the server. Both would have the same URI.
---@param bufnr integer
---@return boolean
function M.is_second_unnamed(bufnr)
  local uri = vim.uri_from_bufnr(bufnr)
  return vim.api.nvim_buf_get_name(bufnr) == ""
    and vim.iter(vim.lsp.get_clients({ name = M.NAME })):any(function(client)
      local first = M.buffer(client, uri)
      return first ~= nil and first ~= bufnr
    end)
end

---Attach a buffer again when it gets another name, by `:file` or by the first `:write`. Neovim does not tell a server
---of a new name before the next `:write`. It wipes out a buffer without a name when it writes it, and with it the
---buffer's autocommands.
---@param client vim.lsp.Client
---@param bufnr integer
function M.follow_name(client, bufnr)
  local uri = vim.uri_from_bufnr(bufnr)
  vim.api.nvim_create_autocmd({ "BufFilePost", "BufWritePost" }, {
    group = vim.api.nvim_create_augroup("dg-lsp-name-" .. bufnr, {}),
    callback = function(event)
      if event.buf ~= bufnr or vim.uri_from_bufnr(bufnr) == uri then
        return false
      end
      if client.attached_buffers[bufnr] then
        client:notify("textDocument/didClose", { textDocument = { uri = uri } })
        vim.lsp.buf_detach_client(bufnr, client.id)
        vim.lsp.buf_attach_client(bufnr, client.id)
      end
      return true
    end,
  })
end

---Detect the type of a buffer that `:file` has named, if it has none. Neovim itself waits for the first `:write`.
function M.detect_types()
  vim.api.nvim_create_autocmd("BufFilePost", {
    group = vim.api.nvim_create_augroup("dg-lsp-type", {}),
    callback = function(event)
      local options = vim.bo[event.buf]
      if options.filetype == "" and options.buftype == "" and vim.g.did_load_filetypes then
        vim.api.nvim_buf_call(event.buf, function()
          vim.cmd("filetype detect")
        end)
      end
    end,
  })
end

---Return the client of a buffer. Without one, show the reason and return nil.
---@param bufnr? integer
---@return vim.lsp.Client?
function M.client_or_warn(bufnr)
  local client = M.client(bufnr)
  if client then
    return client
  end
  if vim.fn.executable(config.current.cmd[1]) == 0 then
    M.notify(("%s can't be run; see :checkhealth dg-lsp"):format(config.current.cmd[1]), "WARN")
  elseif M.why_ended then
    M.notify(M.why_ended, "WARN", SHORT_WHY_ENDED)
  elseif not vim.lsp.is_enabled(M.NAME) then
    M.notify('not enabled; call require("dg_lsp").setup()', "WARN")
  elseif M.is_second_unnamed(bufnr or vim.api.nvim_get_current_buf()) then
    M.notify(
      "only one buffer without a name can use it; :write this one to a file and :edit the file",
      "WARN"
    )
  else
    M.notify("not running for this buffer; see :checkhealth dg-lsp", "WARN")
  end
end

---Return whether a server may be started for a buffer of one of the filetypes.
---@param bufnr integer
---@return boolean
function M.may_start(bufnr)
  return vim.fn.executable(config.current.cmd[1]) == 1 and not M.why_ended and not M.is_second_unnamed(bufnr)
end

---Return whether a server is expected to start for a buffer that has none yet.
---@param bufnr integer
---@return boolean
local function is_expected(bufnr)
  return vim.lsp.is_enabled(M.NAME)
    and M.may_start(bufnr)
    and vim.list_contains(config.current.filetypes, vim.bo[bufnr].filetype)
    and vim.bo[bufnr].buftype == ""
    and #crashes < math.max(1, config.current.restarts)
end

---Call with the client of the current buffer, or once the client has started. If none is expected, show the reason.
---@param run fun(client: vim.lsp.Client, bufnr: integer)
function M.with_client(run)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = M.client(bufnr)
  if client then
    run(client, bufnr)
  elseif not is_expected(bufnr) then
    M.client_or_warn(bufnr)
  else
    M.notify("the server is starting; the command runs when it is ready")
    vim.api.nvim_create_autocmd("LspAttach", {
      buffer = bufnr,
      callback = function(event)
        local attached = vim.lsp.get_client_by_id(event.data.client_id)
        if not attached or attached.name ~= M.NAME then
          return false
        end
        vim.schedule(function()
          if vim.api.nvim_get_current_buf() == bufnr then
            run(attached, bufnr)
          end
        end)
        return true
      end,
    })
  end
end

---@param text string
---@return string the text, truncated to one line of the screen, because Neovim waits for Enter after a longer one
local function one_line(text)
  -- 'showcmd' and the ruler use the same line.
  local room = vim.o.columns - 12
  local line = text:gsub("%s*\n%s*", " ")
  if vim.fn.strdisplaywidth(line) <= room then
    return line
  end
  return vim.fn.strcharpart(line, 0, math.max(room - 12, 20)) .. "… :Dg status"
end

---The last message, not truncated.
M.last_message = ""

---Return whether vim.notify is Neovim's own. A plugin that replaces it, from a file of its own, has room for long
---messages.
---@return boolean
local function has_builtin_notify()
  return type(vim.notify) == "function" and not debug.getinfo(vim.notify, "S").source:find("^@/")
end

---Show a message. A message longer than a line of the screen is shown in full by :Dg status.
---@param sentence string
---@param level? "INFO"|"WARN"|"ERROR"
---@param summary? string shown in place of a sentence that is longer than a line
function M.notify(sentence, level, summary)
  local text = "dg-lsp: " .. sentence
  local short = one_line(text)
  if short ~= text and summary then
    short = one_line("dg-lsp: " .. summary)
  end
  M.last_message = text
  vim.notify(has_builtin_notify() and short or text, vim.log.levels[level or "INFO"])
end

---Show a message that the user must see. In Insert mode "-- INSERT --" covers messages, so show this one at the cursor
---until the next key, and as a message when Insert mode ends.
---@param sentence string
---@param level "WARN"|"ERROR"
---@param summary string
local function announce(sentence, level, summary)
  if not has_builtin_notify() or not vim.startswith(vim.api.nvim_get_mode().mode, "i") then
    M.notify(sentence, level, summary)
    return
  end
  M.last_message = "dg-lsp: " .. sentence
  if vim.bo.buftype == "" then
    require("dg_lsp.reason").show(vim.api.nvim_get_current_buf(), summary)
  end
  vim.api.nvim_create_autocmd("ModeChanged", {
    pattern = "i*:n",
    once = true,
    callback = vim.schedule_wrap(function()
      M.notify(sentence, level, summary)
    end),
  })
end

---Handle `window/showMessage`.
---@param params lsp.ShowMessageParams
function M.on_message(params)
  local levels = { "ERROR", "WARN", "INFO", "INFO", "INFO" }
  M.notify((params.message:gsub("^dg%-lsp: ", "")), levels[params.type])
end

---Change the settings of all servers, until Neovim ends.
---@param change fun(settings: table)
function M.change_settings(change)
  local settings = config.server_settings()
  change(settings)
  config.current.settings = settings
  vim.lsp.config(M.NAME, { settings = { dgLsp = settings } })
  for _, client in ipairs(vim.lsp.get_clients({ name = M.NAME })) do
    client.settings = { dgLsp = settings }
    client:notify("workspace/didChangeConfiguration", { settings = client.settings })
  end
end

---Restart a server that was ended because it was frozen. If the one that replaced such a server was frozen too, start
---none.
---@param process dg_lsp.Process
local function replace(process)
  n_frozen = process.answered_ms - process.started_ms > CRASH_WINDOW_MS and 1 or n_frozen + 1
  if n_frozen > math.min(1, config.current.restarts) then
    M.why_ended = ("the server stopped answering%s and was ended; :Dg restart starts it, :Dg log may show why"):format(
      n_frozen > 1 and " again" or ""
    )
    announce(M.why_ended, "ERROR", SHORT_WHY_ENDED)
  else
    local short = "the server froze and was restarted; :Dg log may show why"
    announce("the server stopped answering and was restarted; :Dg log may show why", "WARN", short)
    vim.lsp.enable(M.NAME)
  end
end

---Handle the end of the server's process: restart it for its buffers, unless it was stopped on purpose, or crashed or
---was frozen too often.
---@param code integer
---@param signal integer
---@param client_id integer
function M.on_exit(code, signal, client_id)
  vim.schedule(function()
    require("dg_lsp.status").forget(client_id)
    require("dg_lsp.draft").forget(client_id)
    if vim.v.exiting ~= vim.NIL or not vim.lsp.is_enabled(M.NAME) or (code == 0 and signal == 0) then
      return
    end
    local client = vim.lsp.get_client_by_id(client_id)
    local process = client and watchdog.process(client)
    if process and process.is_frozen then
      replace(process)
      return
    end
    local now = vim.uv.now()
    crashes = vim.tbl_filter(function(crashed_at)
      return now - crashed_at < CRASH_WINDOW_MS
    end, crashes)
    if #crashes >= config.current.restarts then
      M.notify(
        ("the server ended with %s; :Dg restart restarts it"):format(
          signal ~= 0 and "signal " .. signal or "code " .. code
        ),
        "ERROR"
      )
      return
    end
    table.insert(crashes, now)
    vim.lsp.enable(M.NAME)
  end)
end

---Restart the engine, and the server if it has ended.
function M.restart()
  crashes, n_frozen, M.why_ended = {}, 0, nil
  local client = M.client()
  if client then
    client:exec_cmd({ title = "restart the engine", command = "dgLsp.restartEngine" })
  elseif vim.fn.executable(config.current.cmd[1]) == 0 then
    M.client_or_warn()
  else
    vim.lsp.enable(M.NAME)
  end
end

return M
