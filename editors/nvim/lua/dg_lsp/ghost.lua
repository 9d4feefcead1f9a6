-- Ghost text: what Neovim's own inline completion shows, accepted whole or in parts, cycled, dismissed, asked for.
--
-- Neovim 0.12 keeps an item on screen while the user types on, and would insert it as it was sent. So what is inserted
-- here is the rest of the item behind what has been typed since, and an item that no longer fits is taken off the
-- screen. What Neovim offers for this is public only in part: all that is not is behind `completor`, and without it
-- accepting still works.

local server = require("dg_lsp.server")

local M = {}

local METHOD = "textDocument/inlineCompletion"

---How much of an item, told by its command's argument, was accepted in parts, in UTF-16 units.
---@type table<integer, integer>
local accepted_units = {}

---Return what Neovim keeps for a buffer's inline completion, nil where there is none or this Neovim has another inside.
---@param bufnr integer
---@return table?
local function completor(bufnr)
  local ok, capability = pcall(require, "vim.lsp._capability")
  local kind = ok and type(capability.all) == "table" and capability.all.inline_completion
  local found = kind and type(kind.active) == "table" and kind.active[bufnr]
  if type(found) ~= "table" or type(found.client_state) ~= "table" then
    return nil
  end
  for _, name in ipairs({ "show", "hide", "select", "abort", "count_items" }) do
    if type(found[name]) ~= "function" then
      return nil
    end
  end
  return found
end

---Return whether this Neovim has inside what cycling, partial acceptance without flicker and explicit requests need.
---@param bufnr integer
---@return boolean
function M.is_whole(bufnr)
  return completor(bufnr) ~= nil
end

---@param item table
---@return boolean
local function is_ours(item)
  local client = vim.lsp.get_client_by_id(item.client_id)
  return client ~= nil and client.name == server.NAME and type(item.insert_text) == "string"
end

---Return what of an item is still to be inserted at the cursor, and the column where what it replaces ends; nil where
---it no longer fits. Columns count bytes from 0.
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

---@param item table
---@param text string what goes in at the cursor
---@param end_col integer
local function insert(item, text, end_col)
  -- Setting the option, even to its own value, begins another step to undo.
  vim.bo.undolevels = vim.bo.undolevels
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local lines = vim.split(text, "\n", { plain = true })
  vim.api.nvim_buf_set_text(0, row - 1, column, row - 1, end_col, lines)
  local last = lines[#lines]
  vim.api.nvim_win_set_cursor(0, { row + #lines - 1, (#lines == 1 and column or 0) + #last })
  return item
end

---@param item table
local function tell_accepted(item)
  local client = vim.lsp.get_client_by_id(item.client_id)
  if client and item.command then
    client:exec_cmd(item.command, { bufnr = vim.api.nvim_get_current_buf() })
  end
end

---@param item table
---@param text string
local function tell_partly(item, text)
  local client = vim.lsp.get_client_by_id(item.client_id)
  local id = item.command and item.command.arguments and item.command.arguments[1]
  if not client or not id then
    return
  end
  accepted_units = { [id] = (accepted_units[id] or 0) + vim.str_utfindex(text, "utf-16") }
  -- It belongs to no method that Neovim knows.
  ---@diagnostic disable-next-line: param-type-mismatch
  client:notify("textDocument/didPartiallyAcceptCompletion", {
    item = { insertText = item.insert_text, command = item.command },
    acceptedLength = accepted_units[id],
  })
end

---@param part fun(rest: string): string how much of the rest to insert
---@return boolean
local function accept(part)
  local bufnr = vim.api.nvim_get_current_buf()
  local inside = completor(bufnr)
  if inside and inside.current and is_ours(inside.current) and not rest_of(inside.current) then
    inside:abort()
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
        insert(item, rest, end_col)
        tell_accepted(item)
        return nil
      end
      -- What the item replaces stays for its last part.
      local row, column = unpack(vim.api.nvim_win_get_cursor(0))
      insert(item, text, column)
      tell_partly(item, text)
      if inside then
        local after, at = unpack(vim.api.nvim_win_get_cursor(0))
        local shift = after == row and end_col - column or 0
        inside.current = vim.tbl_extend("force", item, {
          insert_text = rest:sub(#text + 1),
          range = vim.range(bufnr, after - 1, at, after - 1, at + shift),
        })
        inside:show()
      end
      return nil
    end,
  })
end

---Insert all that is shown. Return whether anything was.
---@return boolean
function M.accept()
  return accept(function(rest)
    return rest
  end)
end

---Insert the next word of what is shown, with the space before it. Return whether anything was shown.
---@return boolean
function M.accept_word()
  return accept(function(rest)
    return rest:match("^%s*[%w_\128-\255]+") or rest:match("^%s*[^%w_%s\128-\255]+") or rest
  end)
end

---Insert what is shown up to the end of its line. Return whether anything was shown.
---@return boolean
function M.accept_line()
  return accept(function(rest)
    return rest:match("^\n?[^\n]*")
  end)
end

---Take what is shown off the screen, until the cursor moves.
---@return boolean
function M.dismiss()
  local bufnr = vim.api.nvim_get_current_buf()
  local inside = completor(bufnr)
  if inside then
    local shown = inside.current ~= nil
    inside:abort()
    return shown
  end
  vim.lsp.inline_completion.enable(false, { bufnr = bufnr })
  vim.lsp.inline_completion.enable(true, { bufnr = bufnr })
  return true
end

---Ask for suggestions now, several of them, whether or not they come by themselves.
---@param choose? fun(n_items: integer): integer which of so many to show, the first by default
function M.request(choose)
  local bufnr = vim.api.nvim_get_current_buf()
  local client, inside = server.needed(bufnr), completor(bufnr)
  if not client then
    return
  end
  if not inside or not inside.client_state[client.id] then
    server.say("this Neovim can't be asked for suggestions by hand; they come while you type", "WARN")
    return
  end
  inside:abort()
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
    inside = completor(bufnr)
    local is_here = vim.api.nvim_get_current_buf() == bufnr
      and vim.api.nvim_buf_get_changedtick(bufnr) == tick
      and vim.deep_equal(vim.api.nvim_win_get_cursor(0), cursor)
      and vim.startswith(vim.api.nvim_get_mode().mode, "i")
    if err or not result or not inside or not inside.client_state[client.id] or not is_here then
      return
    end
    local items = result.items or result
    if #items == 0 then
      vim.schedule(function()
        local status = require("dg_lsp.status").current(bufnr)
        local reason = status and status.suppressed and status.suppressed.message
          or "the model has no answer here"
        server.say(reason)
        require("dg_lsp.reason").show(bufnr, reason)
      end)
      return
    end
    inside.client_state[client.id].items = items
    inside:select(choose and choose(#items) or 1, #items > 1)
    M.mend(bufnr)
  end, bufnr)
end

---@param step integer
local function cycle(step)
  local inside = completor(vim.api.nvim_get_current_buf())
  if not inside or inside:count_items() > 1 then
    vim.lsp.inline_completion.select({ count = step })
    return
  end
  -- While typing there is one suggestion; the others are made only when somebody wants to see them.
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
  local inside = completor(vim.api.nvim_get_current_buf())
  return inside ~= nil and inside.current ~= nil
end

---Take off the screen what no longer fits what was typed, and show line ends as line ends.
---@param bufnr integer
function M.mend(bufnr)
  local inside = completor(bufnr)
  local item = inside and inside.current
  if not inside or not item or not is_ours(item) or vim.api.nvim_get_current_buf() ~= bufnr then
    return
  end
  if not rest_of(item) then
    inside.current = nil
    inside:hide()
  elseif item.insert_text:find("\r", 1, true) then
    item.insert_text = item.insert_text:gsub("\r\n?", "\n")
    inside:show()
  end
end

---A buffer has the server now.
---@param client vim.lsp.Client
---@param bufnr integer
function M.attach(client, bufnr)
  if not client:supports_method(METHOD, bufnr) then
    return
  end
  vim.lsp.inline_completion.enable(true, { bufnr = bufnr })
  local group = vim.api.nvim_create_augroup("dg-lsp-ghost-" .. bufnr, {})
  -- Defined after Neovim's own, and so run after them.
  vim.api.nvim_create_autocmd({ "CursorMovedI", "TextChangedI", "TextChangedP" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      M.mend(bufnr)
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
        -- An answer may come when the text has moved on.
        vim.schedule(function()
          M.mend(bufnr)
        end)
      elseif request.type == "pending" then
        -- Neovim lets older requests run on while the user types.
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
