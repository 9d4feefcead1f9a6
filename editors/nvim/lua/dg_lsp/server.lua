-- The running server: which client it is, how it is told new settings, and what happens when it crashes.

local config = require("dg_lsp.config")

local M = {}

M.NAME = "dg_lsp"

local WINDOW_MS = 5 * 60 * 1000
---@type number[]
local crashes = {}

---Return the client of a buffer, the current one by default; nil where there is none.
---@param bufnr? integer
---@return vim.lsp.Client?
function M.client(bufnr)
  return vim.lsp.get_clients({ name = M.NAME, bufnr = bufnr or 0 })[1]
end

---Return which of a client's buffers has an address; nil for none. (Neovim's own function makes a buffer where there is
---none, and of the address of a buffer without a name that of the root directory.)
---@param client vim.lsp.Client
---@param uri string
---@return integer?
function M.buffer(client, uri)
  return vim.iter(pairs(client.attached_buffers)):find(function(bufnr)
    return vim.api.nvim_buf_is_loaded(bufnr) and vim.uri_from_bufnr(bufnr) == uri
  end)
end

---Return whether a buffer has no name while another without one has the server: the two would have one address.
---@param bufnr integer
---@return boolean
function M.is_second(bufnr)
  local uri = vim.uri_from_bufnr(bufnr)
  return vim.api.nvim_buf_get_name(bufnr) == ""
    and vim.iter(vim.lsp.get_clients({ name = M.NAME })):any(function(client)
      local first = M.buffer(client, uri)
      return first ~= nil and first ~= bufnr
    end)
end

---When a buffer without a name is written to a file, tell the server so: for Neovim that wipes out the buffer without a
---name, and with it all that listens to it.
---@param client vim.lsp.Client
---@param bufnr integer
function M.follow_name(client, bufnr)
  if vim.api.nvim_buf_get_name(bufnr) ~= "" then
    return
  end
  local uri = vim.uri_from_bufnr(bufnr)
  vim.api.nvim_create_autocmd("BufWritePost", {
    group = vim.api.nvim_create_augroup("dg-lsp-name-" .. bufnr, {}),
    callback = function(event)
      if event.buf ~= bufnr or vim.api.nvim_buf_get_name(bufnr) == "" then
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

---Return the client of a buffer, or tell the user why there is none.
---@param bufnr? integer
---@return vim.lsp.Client?
function M.needed(bufnr)
  local client = M.client(bufnr)
  if client then
    return client
  end
  if vim.fn.executable(config.current.cmd[1]) == 0 then
    M.say(("%s can't be run; :checkhealth dg-lsp says more"):format(config.current.cmd[1]), "WARN")
  elseif not vim.lsp.is_enabled(M.NAME) then
    M.say('it is not switched on; call require("dg_lsp").setup()', "WARN")
  elseif M.is_second(bufnr or vim.api.nvim_get_current_buf()) then
    M.say(
      "of several buffers without a name only one has it; write this one to a file, and :edit that",
      "WARN"
    )
  else
    M.say("it does not run for this buffer; :checkhealth dg-lsp says more", "WARN")
  end
end

---Return whether a server can be expected to come to a buffer that has none yet.
---@param bufnr integer
---@return boolean
local function is_coming(bufnr)
  return vim.lsp.is_enabled(M.NAME)
    and vim.fn.executable(config.current.cmd[1]) == 1
    and vim.list_contains(config.current.filetypes, vim.bo[bufnr].filetype)
    and vim.bo[bufnr].buftype == ""
    and not M.is_second(bufnr)
    and #crashes < math.max(1, config.current.restarts)
end

---Call with the client of the current buffer: now, or once it has started if one can be expected; else tell the user
---why there is none.
---@param run fun(client: vim.lsp.Client, bufnr: integer)
function M.with_client(run)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = M.client(bufnr)
  if client then
    run(client, bufnr)
  elseif not is_coming(bufnr) then
    M.needed(bufnr)
  else
    M.say("the server is starting; this follows")
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
---@return string the text, cut to one line of the screen: a longer one would wait for Enter
local function fitting(text)
  -- 'showcmd' and the ruler share that line.
  local room = vim.o.columns - 12
  local line = text:gsub("%s*\n%s*", " ")
  if vim.fn.strdisplaywidth(line) <= room then
    return line
  end
  return vim.fn.strcharpart(line, 0, math.max(room - 12, 20)) .. "… :Dg status"
end

---What was said last, as a whole.
M.last_words = ""

---Tell the user something. What is longer than a line of the screen is in :Dg status as a whole.
---@param sentence string
---@param level? "INFO"|"WARN"|"ERROR"
function M.say(sentence, level)
  local text = "dg-lsp: " .. sentence
  local short = fitting(text)
  M.last_words = text
  -- What another plugin has put in its place, from a file of its own, has room for long messages.
  local is_plain = not debug.getinfo(vim.notify, "S").source:find("^@/")
  vim.notify(is_plain and short or text, vim.log.levels[level or "INFO"])
end

---The server says something to the user.
---@param params lsp.ShowMessageParams
function M.heard(params)
  local levels = { "ERROR", "WARN", "INFO", "INFO", "INFO" }
  M.say((params.message:gsub("^dg%-lsp: ", "")), levels[params.type])
end

---Tell all servers new settings, for as long as Neovim runs.
---@param change fun(settings: table)
function M.tell(change)
  local settings = config.server_settings()
  change(settings)
  config.current.settings = settings
  vim.lsp.config(M.NAME, { settings = { dgLsp = settings } })
  for _, client in ipairs(vim.lsp.get_clients({ name = M.NAME })) do
    client.settings = { dgLsp = settings }
    client:notify("workspace/didChangeConfiguration", { settings = client.settings })
  end
end

---The server's process ended: start it again for the buffers that had it, unless it was meant to end or does so again
---and again.
---@param code integer
---@param signal integer
---@param client_id integer
function M.ended(code, signal, client_id)
  vim.schedule(function()
    require("dg_lsp.status").forget(client_id)
    require("dg_lsp.draft").forget(client_id)
    if vim.v.exiting ~= vim.NIL or not vim.lsp.is_enabled(M.NAME) or (code == 0 and signal == 0) then
      return
    end
    local now = vim.uv.now()
    crashes = vim.tbl_filter(function(at)
      return now - at < WINDOW_MS
    end, crashes)
    if #crashes >= config.current.restarts then
      M.say(
        ("the server ended with %s; :Dg restart starts it again"):format(
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
  crashes = {}
  local client = M.client()
  if client then
    client:exec_cmd({ title = "restart the engine", command = "dgLsp.restartEngine" })
  elseif vim.fn.executable(config.current.cmd[1]) == 0 then
    M.needed()
  else
    vim.lsp.enable(M.NAME)
  end
end

return M
