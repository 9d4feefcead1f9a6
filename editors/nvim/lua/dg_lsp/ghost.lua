-- Ghost text: accepts Neovim's inline completion whole or in parts, cycles, dismisses and requests it.
--
-- Neovim 0.12 keeps an item on the screen while the user types, and would insert all of it, including the part that was
-- typed. This module inserts only the rest, and hides an item that no longer fits. It uses private parts of Neovim, all
-- of them behind `completor`. Without them, accepting still works.

local macro = require("dg_lsp.macro")
local server = require("dg_lsp.server")

local M = {}

local METHOD = "textDocument/inlineCompletion"

---Where suggestions are held, the item that the user revealed.
---@type table?
local revealed

---Whether the next item is revealed when it comes.
local reveals_next = false

---@param item table
---@return boolean
local function is_ours(item)
  local client = vim.lsp.get_client_by_id(item.client_id)
  return client ~= nil and client.name == server.NAME and type(item.insert_text) == "string"
end

---Return whether an item stays hidden, because the user has not revealed it.
---@param bufnr integer
---@param item table
---@return boolean
local function is_hidden(bufnr, item)
  local status = require("dg_lsp.status").current(bufnr)
  return is_ours(item) and item ~= revealed and status ~= nil and status.held == true
end

---Let Neovim's object show only what is not hidden.
---@param state table
local function hold(state)
  if rawget(state, "show") then
    return
  end
  local show = state.show
  state.show = function(self, hint)
    if self.current and reveals_next then
      revealed, reveals_next = self.current, false
    end
    if self.current and is_hidden(self.bufnr, self.current) then
      self:hide()
    else
      show(self, hint)
    end
  end
end

---Return Neovim's private object for a buffer's inline completion; nil if it does not exist or has another interface.
---@param bufnr integer
---@return table?
local function completor(bufnr)
  local ok, capability = pcall(require, "vim.lsp._capability")
  local kind = ok and type(capability.all) == "table" and capability.all.inline_completion
  local candidate = kind and type(kind.active) == "table" and kind.active[bufnr]
  if type(candidate) ~= "table" or type(candidate.client_state) ~= "table" then
    return nil
  end
  for _, name in ipairs({ "show", "hide", "select", "abort", "count_items" }) do
    if type(candidate[name]) ~= "function" then
      return nil
    end
  end
  hold(candidate)
  return candidate
end

---Return whether this Neovim has the private parts that cycling, explicit requests and partial acceptance need.
---@param bufnr integer
---@return boolean
function M.has_completor(bufnr)
  return completor(bufnr) ~= nil
end

---Return the part of an item that is not yet typed, and the column where the replaced text ends. Return nil if the item
---no longer fits. Columns count bytes from 0.
---@param item table
---@return string? rest, integer? end_col
local function rest_of(item)
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  row = row - 1
  local text = item.insert_text:gsub("\r\n?", "\n")
  local range = item.range
  if not range then
    return text, column
  end
  if range.start_row ~= row or range.end_row ~= row or range.start_col > column then
    return nil
  end
  local typed = vim.api.nvim_get_current_line():sub(range.start_col + 1, column)
  if text:sub(1, #typed) ~= typed or #text == #typed then
    return nil
  end
  return text:sub(#typed + 1), math.max(range.end_col, column)
end

---Insert a text as pasted text, which Neovim repeats with `.`. Another plugin's `vim.paste` gets nothing of it.
---@param text string
local function paste(text)
  local others = vim.paste
  -- luacheck: push ignore 122
  vim.paste = function(lines)
    vim.api.nvim_put(lines, "c", false, true)
    return true
  end
  local ok, err = pcall(vim.api.nvim_paste, text, false, -1)
  vim.paste = others
  -- luacheck: pop
  if not ok then
    error(err, 0)
  end
end

---@param text string inserted at the cursor
---@param end_col integer where the replaced text ends
local function insert(text, end_col)
  -- Setting this option, even to its own value, starts a new undo step.
  vim.bo.undolevels = vim.bo.undolevels
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  if macro.is_recording() then
    local replaced = vim.api.nvim_get_current_line():sub(column + 1, end_col)
    macro.type(text, vim.fn.strchars(replaced))
    return
  end
  vim.api.nvim_buf_set_text(0, row - 1, column, row - 1, end_col, {})
  paste(text)
end

---@param part fun(rest: string): string how much of the rest to insert
---@return boolean
local function accept(part)
  local bufnr = vim.api.nvim_get_current_buf()
  local state = completor(bufnr)
  if state and state.current and is_hidden(bufnr, state.current) then
    return false
  end
  if state and state.current and is_ours(state.current) and not rest_of(state.current) then
    state:abort()
    return false
  end
  return vim.lsp.inline_completion.get({
    bufnr = bufnr,
    on_accept = function(item)
      if not is_ours(item) then
        return item
      end
      local rest, end_col = rest_of(item)
      if not rest or not end_col then
        return nil
      end
      local text = part(rest)
      if #text >= #rest then
        insert(rest, end_col)
        return nil
      end
      -- The replaced text stays until the last part is accepted.
      local row, column = unpack(vim.api.nvim_win_get_cursor(0))
      insert(text, column)
      if state then
        local after, at = unpack(vim.api.nvim_win_get_cursor(0))
        local shift = after == row and end_col - column or 0
        state.current = vim.tbl_extend("force", item, {
          insert_text = rest:sub(#text + 1),
          range = vim.range(bufnr, after - 1, at, after - 1, at + shift),
        })
        revealed = state.current
        state:show()
      end
      return nil
    end,
  })
end

---Insert the suggestion. Return whether one was shown.
---@return boolean
function M.accept()
  return accept(function(rest)
    return rest
  end)
end

---Insert the suggestion's next word, with the space before it. Return whether a suggestion was shown.
---@return boolean
function M.accept_word()
  return accept(function(rest)
    return rest:match("^%s*[%w_\128-\255]+") or rest:match("^%s*[^%w_%s\128-\255]+") or rest
  end)
end

---Insert the suggestion up to the end of its line. Return whether a suggestion was shown.
---@return boolean
function M.accept_line()
  return accept(function(rest)
    return rest:match("^\n?[^\n]*")
  end)
end

---Hide the suggestion until the cursor moves. Return whether one was shown.
---@return boolean
function M.dismiss()
  local bufnr = vim.api.nvim_get_current_buf()
  local state = completor(bufnr)
  if state then
    local shown = state.current ~= nil
    state:abort()
    return shown
  end
  vim.lsp.inline_completion.enable(false, { bufnr = bufnr })
  vim.lsp.inline_completion.enable(true, { bufnr = bufnr })
  return true
end

---Show the suggestion that was prepared at the cursor.
function M.reveal()
  local state = completor(vim.api.nvim_get_current_buf())
  if not state then
    return
  end
  reveals_next = true
  if state.current then
    state:show()
  else
    state:request(vim.lsp.protocol.InlineCompletionTriggerKind.Automatic)
  end
end

---Ask again for a suggestion at the cursor if none is shown. Neovim itself asks only after the next key.
function M.ask_again()
  local state = completor(vim.api.nvim_get_current_buf())
  if state and not state.current and vim.startswith(vim.api.nvim_get_mode().mode, "i") then
    state:request(vim.lsp.protocol.InlineCompletionTriggerKind.Automatic)
  end
end

---Ask again where the answer came after the deadline, if the text is the same.
---@param document { uri: string, version: integer }
function M.on_refresh(document)
  local bufnr = vim.api.nvim_get_current_buf()
  if document.uri == vim.uri_from_bufnr(bufnr) and document.version == vim.lsp.util.buf_versions[bufnr] then
    M.ask_again()
  end
end

---Request several suggestions now, whether or not suggestions appear while typing.
---@param choose? fun(n_items: integer): integer returns the index of the item to show; the first by default
function M.request(choose)
  local bufnr = vim.api.nvim_get_current_buf()
  local client, state = server.client_or_warn(bufnr), completor(bufnr)
  if not client then
    return
  end
  if not state or not state.client_state[client.id] then
    server.notify(
      "explicit requests do not work in this version of Neovim; suggestions appear while you type",
      "WARN"
    )
    return
  end
  state:abort()
  local tick, cursor = vim.api.nvim_buf_get_changedtick(bufnr), vim.api.nvim_win_get_cursor(0)
  local row, column = cursor[1] - 1, cursor[2]
  client:request(METHOD, {
    textDocument = { uri = vim.uri_from_bufnr(bufnr) },
    position = {
      line = row,
      character = vim.str_utfindex(vim.api.nvim_get_current_line(), client.offset_encoding, column, false),
    },
    context = { triggerKind = vim.lsp.protocol.InlineCompletionTriggerKind.Invoked },
  }, function(err, result)
    state = completor(bufnr)
    local is_here = vim.api.nvim_get_current_buf() == bufnr
      and vim.api.nvim_buf_get_changedtick(bufnr) == tick
      and vim.deep_equal(vim.api.nvim_win_get_cursor(0), cursor)
      and vim.startswith(vim.api.nvim_get_mode().mode, "i")
    if err or not result or not state or not state.client_state[client.id] or not is_here then
      return
    end
    local items = result.items or result
    if #items == 0 then
      vim.schedule(function()
        local status = require("dg_lsp.status").current(bufnr)
        local reason = status and status.suppressed and status.suppressed.message
          or "the model has no answer here"
        server.notify(reason)
        require("dg_lsp.reason").show(bufnr, reason)
      end)
      return
    end
    state.client_state[client.id].items = items
    reveals_next = true
    state:select(choose and choose(#items) or 1, #items > 1)
    M.refresh(bufnr)
  end, bufnr)
end

---@param step integer
local function cycle(step)
  local state = completor(vim.api.nvim_get_current_buf())
  if not state or state:count_items() > 1 then
    reveals_next = true
    vim.lsp.inline_completion.select({ count = step })
    return
  end
  -- While typing, the server sends one suggestion. The others are requested only when the user cycles.
  M.request(function(n_items)
    return n_items == 1 and 1 or (step > 0 and 2 or n_items)
  end)
end

---Show the next suggestion.
function M.next()
  cycle(1)
end

---Show the previous suggestion.
function M.previous()
  cycle(-1)
end

---Return whether a suggestion is on the screen.
---@return boolean
function M.is_shown()
  local bufnr = vim.api.nvim_get_current_buf()
  local state = completor(bufnr)
  return state ~= nil and state.current ~= nil and not is_hidden(bufnr, state.current)
end

---Hide a suggestion that no longer fits the typed text, and replace CR in the shown text by a line break.
---@param bufnr integer
function M.refresh(bufnr)
  local state = completor(bufnr)
  local item = state and state.current
  if not state or not item or not is_ours(item) or vim.api.nvim_get_current_buf() ~= bufnr then
    return
  end
  if not rest_of(item) then
    state.current = nil
    state:hide()
  elseif item.insert_text:find("\r", 1, true) then
    item.insert_text = item.insert_text:gsub("\r\n?", "\n")
    state:show()
  end
end

---Enable inline completion in a buffer that a client was attached to.
---@param client vim.lsp.Client
---@param bufnr integer
function M.attach(client, bufnr)
  if not client:supports_method(METHOD, bufnr) then
    return
  end
  vim.lsp.inline_completion.enable(true, { bufnr = bufnr })
  local group = vim.api.nvim_create_augroup("dg-lsp-ghost-" .. bufnr, {})
  -- These autocommands run after Neovim's own, because they are defined later.
  vim.api.nvim_create_autocmd({ "CursorMovedI", "TextChangedI", "TextChangedP" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      reveals_next = false
      M.refresh(bufnr)
    end,
  })
  -- Neovim's own ends with InsertLeave, which `<C-c>` skips, as does what leaves the window in insert mode, or reads
  -- the file again. `<C-o>` returns.
  vim.api.nvim_create_autocmd({ "BufLeave", "WinLeave", "ModeChanged", "FileChangedShellPost" }, {
    group = group,
    buffer = bufnr,
    callback = function(event)
      local state = completor(bufnr)
      if state and not (event.event == "ModeChanged" and vim.v.event.new_mode:find("^n?i")) then
        reveals_next = false
        state:abort()
      end
    end,
  })
  vim.api.nvim_create_autocmd("LspRequest", {
    group = group,
    buffer = bufnr,
    callback = function(event)
      local request = event.data.request
      if event.data.client_id ~= client.id or request.method ~= METHOD then
        return
      elseif request.type == "complete" then
        -- The text may have changed since the request.
        vim.schedule(function()
          M.refresh(bufnr)
        end)
      elseif request.type == "pending" then
        -- Neovim does not cancel older requests while the user types.
        for id, older in pairs(client.requests) do
          if
            id ~= event.data.request_id
            and older.bufnr == bufnr
            and older.method == METHOD
            and older.type == "pending"
          then
            client:cancel_request(id)
          end
        end
      end
    end,
  })
end

return M
