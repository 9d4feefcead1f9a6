-- The next edit: asks for the change that the user will probably make next, shows it over the text, goes to it, and
-- applies it. Loaded when a server's `nextEdit.trigger` is not "off", or when the user asks.

local macro = require("dg_lsp.macro")
local server = require("dg_lsp.server")

local M = {}

local BY_USER, BY_ITSELF = 1, 2

local namespace = vim.api.nvim_create_namespace("dg-lsp-next-edit")

---@class dg_lsp.NextEdit
---@field textDocument { uri: string, version: integer } the text for which it was made
---@field range lsp.Range
---@field text string
---@field command lsp.Command
---@field client vim.lsp.Client
---@field bufnr integer
---@field row integer the first row that changes; the number of rows if lines are added at the end
---@field old string[] the lines that change
---@field new string[] the lines in place of them

---The edit on the screen.
---@type dg_lsp.NextEdit?
local shown

---The last request, and the text and place for which it was sent; `id` is nil after the answer.
---@type { client: vim.lsp.Client, place: any[], id: integer? }?
local asked

---@param edit dg_lsp.NextEdit
---@return boolean whether the current buffer has the text and the name for which the edit was made
local function is_current(edit)
  return vim.api.nvim_get_current_buf() == edit.bufnr
    and vim.lsp.util.buf_versions[edit.bufnr] == edit.textDocument.version
    and vim.uri_from_bufnr(edit.bufnr) == edit.textDocument.uri
    and not edit.client:is_stopped()
end

-- Scheduled, because the text may be changing.
local redraw_status = vim.schedule_wrap(function()
  vim.cmd.redrawstatus({ bang = true })
end)

---Take the edit off the screen.
function M.hide()
  if not shown then
    return
  end
  local bufnr = shown.bufnr
  shown = nil
  vim.on_key(nil, namespace)
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
  redraw_status()
end

---Take the edit off the screen, and end the last request.
local function stop()
  if asked and asked.id and not asked.client:is_stopped() then
    asked.client:cancel_request(asked.id)
  end
  asked = nil
  M.hide()
end

---Return whether an edit may be on the screen together with what the editor does now.
---@return boolean
local function may_show()
  return vim.bo.modifiable
    and not vim.bo.readonly
    and vim.bo.buftype == ""
    and vim.fn.pumvisible() == 0
    and not vim.api.nvim_get_mode().mode:find("^[vVsS\22\19Rt]")
    and not macro.is_recording()
    and vim.fn.reg_executing() == ""
    and not vim.snippet.active()
    and not require("dg_lsp.ghost").is_shown()
end

---Return how many bytes two lines have in common at the start, and then at the end, in whole characters.
---@param old string
---@param new string
---@return integer head, integer tail
local function common(old, new)
  local n_least, head, tail = math.min(#old, #new), 0, 0
  while head < n_least and old:byte(head + 1) == new:byte(head + 1) do
    head = head + 1
  end
  -- The first byte that differs may be inside of a character.
  while
    head > 0 and (vim.str_utf_start(old .. " ", head + 1) < 0 or vim.str_utf_start(new .. " ", head + 1) < 0)
  do
    head = head - 1
  end
  while tail < n_least - head and old:byte(#old - tail) == new:byte(#new - tail) do
    tail = tail + 1
  end
  while tail > 0 and vim.str_utf_start(old, #old - tail + 1) < 0 do
    tail = tail - 1
  end
  return head, tail
end

---Add to an edit the lines that it changes. Return false if it changes none.
---@param edit dg_lsp.NextEdit
---@return boolean
local function compare(edit)
  local first, last = edit.range.start, edit.range["end"]
  local old = vim.api.nvim_buf_get_lines(edit.bufnr, first.line, last.line + 1, false)
  -- A position may be behind the last line end, where Neovim has no line.
  for idx = #old + 1, last.line - first.line + 1 do
    old[idx] = ""
  end
  local encoding = edit.client.offset_encoding
  local before = old[1]:sub(1, vim.str_byteindex(old[1], encoding, first.character, false))
  local after = old[#old]:sub(vim.str_byteindex(old[#old], encoding, last.character, false) + 1)
  local new = vim.split(before .. edit.text:gsub("\r\n?", "\n") .. after, "\n", { plain = true })
  edit.row = first.line
  while #old > 0 and #new > 0 and old[#old] == new[#new] do
    table.remove(old)
    table.remove(new)
  end
  while #old > 0 and #new > 0 and old[1] == new[1] do
    table.remove(old, 1)
    table.remove(new, 1)
    edit.row = edit.row + 1
  end
  edit.old, edit.new = old, new
  return #old + #new > 0
end

---Draw the edit: the old text struck, and the new text behind it if the lines stay as many, else below it.
---@param edit dg_lsp.NextEdit
local function draw(edit)
  local old, new, row = edit.old, edit.new, edit.row
  local function mark(at, column, options)
    vim.api.nvim_buf_set_extmark(edit.bufnr, namespace, at, column, options)
  end
  for idx, line in ipairs(old) do
    local head, tail = #line:match("^%s*"), 0
    if #old == #new then
      head, tail = common(line, new[idx])
      local text = new[idx]:sub(head + 1, #new[idx] - tail)
      mark(
        row + idx - 1,
        #line - tail,
        { virt_text = { { text, "DgLspEditNew" } }, virt_text_pos = "inline" }
      )
    end
    local groups = { "DgLspEditOld", "@markup.strikethrough" }
    mark(row + idx - 1, head, { end_col = #line - tail, hl_group = groups })
  end
  if #old == #new or #new == 0 then
    return
  end
  local is_above = #old == 0 and row < vim.api.nvim_buf_line_count(edit.bufnr)
  mark(is_above and row or row + #old - 1, 0, {
    virt_lines = vim.tbl_map(function(line)
      return { { line:gsub("\t", (" "):rep(vim.bo.tabstop)), "DgLspEditNew" } }
    end, new),
    virt_lines_above = is_above,
  })
  if is_above and row == 0 and vim.fn.line("w0") == 1 then
    -- Neovim shows lines above the first one only if there is room for them.
    vim.fn.winrestview({ topfill = #new })
  end
end

---@param edit dg_lsp.NextEdit
local function show(edit)
  if shown and is_current(shown) and shown.text == edit.text and vim.deep_equal(shown.range, edit.range) then
    shown.command = edit.command
    return
  end
  M.hide()
  if not compare(edit) then
    return
  end
  shown = edit
  draw(edit)
  local function hide_it()
    if shown == edit then
      M.hide()
    end
    return true
  end
  -- Unlike autocommands these come at once, whatever changes the text, and in whichever window.
  vim.api.nvim_buf_attach(edit.bufnr, false, { on_lines = hide_it, on_reload = hide_it, on_detach = hide_it })
  vim.on_key(function(_, typed)
    if typed == "\27" and vim.api.nvim_get_mode().mode == "n" then
      vim.schedule(M.reject)
    end
  end, namespace)
  redraw_status()
end

---Return the parameters of a request at the cursor, and what tells its text and place from others.
---@param client vim.lsp.Client
---@return table params, any[] place
local function at_cursor(client)
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.textDocument.version = vim.lsp.util.buf_versions[vim.api.nvim_get_current_buf()]
  return params, { client.id, params.textDocument, params.position }
end

---Ask for the next edit at the cursor.
---@param client vim.lsp.Client
---@param kind 1|2
local function ask(client, kind)
  local bufnr = vim.api.nvim_get_current_buf()
  local params, place = at_cursor(client)
  if kind == BY_ITSELF and asked and vim.deep_equal(asked.place, place) then
    return
  end
  -- The server ends an older request.
  local request = { client = client, place = place }
  asked = request
  params.context = { triggerKind = kind }
  local _, id = client:request("textDocument/copilotInlineEdit", params, function(err, result)
    if asked ~= request then
      return
    end
    request.id = nil
    local found = result and result.edits[1]
    if not found then
      M.hide()
      if kind == BY_USER then
        server.notify(err and err.message or "no next edit is known here")
      end
      return
    end
    local edit = vim.tbl_extend("force", found, { client = client, bufnr = bufnr })
    if is_current(edit) and may_show() then
      show(edit)
    end
  end, bufnr)
  request.id = id
end

---Return what the server says of when to ask in the current buffer.
---@return "off"|"pause"|"manual"
local function trigger()
  local status = require("dg_lsp.status").current()
  return status and status.nextEdit or "off"
end

---Ask after a change of the text and after a movement, and take away what can't be on the screen any more.
local function follow()
  -- An operator or a command line that is being typed changes nothing yet.
  if vim.api.nvim_get_mode().mode:find("^n?[oc]") then
    return
  end
  local client = server.client()
  if not client or not may_show() then
    stop()
  elseif trigger() == "pause" and not require("dg_lsp").is_paused() then
    ask(client, BY_ITSELF)
  end
end

---Follow the text and the cursor, or stop it.
---@param is_on boolean
function M.watch(is_on)
  stop()
  local group = vim.api.nvim_create_augroup("dg-lsp-next-edit", {})
  if not is_on then
    vim.api.nvim_del_augroup_by_id(group)
    return
  end
  -- stylua: ignore
  vim.api.nvim_create_autocmd({
    "BufEnter", "CompleteChanged", "CompleteDone", "CursorMoved", "CursorMovedI", "ModeChanged", "RecordingEnter",
    "TextChanged", "TextChangedI", "TextChangedP",
  }, { group = group, callback = follow })
  vim.api.nvim_create_autocmd({ "BufLeave", "BufFilePost" }, { group = group, callback = stop })
end

---Return whether an edit of the current buffer is shown.
---@return boolean
function M.is_shown()
  return shown ~= nil and is_current(shown)
end

---@param edit dg_lsp.NextEdit
local function accept(edit)
  M.hide()
  -- Setting this option, even to its own value, starts a new undo step.
  vim.bo.undolevels = vim.bo.undolevels
  local change = { range = edit.range, newText = edit.text }
  vim.lsp.util.apply_text_edits({ change }, edit.bufnr, edit.client.offset_encoding)
  local row = math.min(edit.row + math.max(#edit.new, 1), vim.api.nvim_buf_line_count(edit.bufnr))
  local last = edit.new[#edit.new]
  local _, tail = common(#edit.old == #edit.new and edit.old[#edit.old] or "", last or "")
  vim.api.nvim_win_set_cursor(0, { row, last and #last - tail or 0 })
  edit.client:exec_cmd(edit.command, { bufnr = edit.bufnr })
end

---Go to the edit that is shown, or apply it if the cursor is there. Without one, ask for it.
function M.next()
  local edit = M.is_shown() and shown
  if not edit then
    local client = server.client_or_warn()
    if client and trigger() == "off" then
      server.notify('next edits are off; set ["nextEdit.trigger"] in the settings of setup()', "WARN")
    elseif client and not may_show() then
      server.notify("no next edit in a read-only buffer, or with a suggestion, a menu, a macro or a snippet")
    elseif client then
      ask(client, BY_USER)
    end
    return
  end
  local row = vim.api.nvim_win_get_cursor(0)[1] - 1
  if row >= edit.row - (#edit.old == 0 and 1 or 0) and row <= edit.row + math.max(#edit.old - 1, 0) then
    accept(edit)
    return
  end
  vim.cmd("normal! m'")
  local target = math.min(edit.row + 1, vim.api.nvim_buf_line_count(edit.bufnr))
  local column = common(edit.old[1] or "", edit.new[1] or "")
  vim.api.nvim_win_set_cursor(0, { target, column })
end

---Take the edit away and tell the server, which does not offer it again.
function M.reject()
  local edit = M.is_shown() and shown
  if edit then
    M.hide()
    local rejected = { arguments = { edit.command.arguments[1], "rejected" } }
    edit.client:exec_cmd(vim.tbl_extend("force", edit.command, rejected), { bufnr = edit.bufnr })
  end
end

return M
