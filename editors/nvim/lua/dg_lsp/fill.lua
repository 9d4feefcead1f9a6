-- Fill holes on request: asks the server, which answers with an edit; progress and drafts come by themselves.

local preview = require("dg_lsp.preview")
local server = require("dg_lsp.server")

local M = {}

---Requests under way, by client and request id.
---@type table<integer, table<integer, true>>
local running = {}
---Bars that can be cancelled, by client and token.
---@type table<integer, table<string|integer, true>>
local bars = {}

---Say how sure the model is of what it has filled; of several fills, make a list to look through.
---@param bufnr integer
---@param answer { applied: boolean, note?: string, nHoles?: integer, fills?: table[] }
---@param encoding "utf-8"|"utf-16"|"utf-32"
local function tell(bufnr, answer, encoding)
  local fills = answer.applied and answer.fills or {}
  if #fills > 1 then
    local items = vim.tbl_map(function(fill)
      local start = fill.range.start
      local line = vim.api.nvim_buf_get_lines(bufnr, start.line, start.line + 1, false)[1] or ""
      return {
        bufnr = bufnr,
        lnum = start.line + 1,
        col = vim.str_byteindex(line, encoding, start.character, false) + 1,
        text = ("%s: %s"):format(fill.confidence, vim.trim(vim.split(fill.text, "\n")[1])),
      }
    end, fills)
    vim.fn.setloclist(0, {}, " ", { title = "dg-lsp: filled", items = items })
    server.say(("%d of %d holes filled; :lopen lists them"):format(#fills, answer.nHoles))
  elseif #fills == 1 and answer.note ~= "" then
    server.say(("filled (%s)"):format(answer.note))
  end
end

---@param client vim.lsp.Client
---@param bufnr integer
---@param wanted table what to do, in which document, where
local function run(client, bufnr, wanted)
  local id
  local sent, request_id = client:request("workspace/executeCommand", {
    command = "dgLsp.fill",
    arguments = { wanted },
  }, function(err, answer)
    if id and running[client.id] then
      running[client.id][id] = nil
    end
    -- Where there was nothing to fill, the server has said so.
    if err then
      server.say(err.message, "WARN")
    elseif answer and vim.api.nvim_get_current_buf() == bufnr then
      tell(bufnr, answer, client.offset_encoding)
    end
  end, bufnr)
  if sent and request_id then
    id = request_id
    running[client.id] = running[client.id] or {}
    running[client.id][id] = true
  end
end

---@param bufnr integer
---@param row integer
---@param column integer in bytes
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return lsp.Position
local function position(bufnr, row, column, encoding)
  local line = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1] or ""
  return { line = row, character = vim.str_utfindex(line, encoding, math.min(column, #line), false) }
end

---@param client vim.lsp.Client
---@param bufnr integer
---@return lsp.Range
local function cursor_range(client, bufnr)
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local at = position(bufnr, row - 1, column, client.offset_encoding)
  return { start = at, ["end"] = at }
end

---@param bufnr integer
---@return table
local function document(bufnr)
  return { uri = vim.uri_from_bufnr(bufnr), version = vim.lsp.util.buf_versions[bufnr] }
end

---Do the first of these that the server offers at the cursor.
---@param whats string[] such as "body", "hole"
---@param nothing string the sentence for where it offers none
local function offered(whats, nothing)
  server.with_client(function(client, bufnr)
    client:request("textDocument/codeAction", {
      textDocument = { uri = vim.uri_from_bufnr(bufnr) },
      range = cursor_range(client, bufnr),
      context = { diagnostics = {}, triggerKind = vim.lsp.protocol.CodeActionTriggerKind.Invoked },
    }, function(err, actions)
      if err then
        server.say(err.message, "WARN")
        return
      end
      for _, what in ipairs(whats) do
        for _, action in ipairs(actions or {}) do
          if action.data and action.data["do"] == what then
            run(client, bufnr, action.data)
            return
          end
        end
      end
      server.say(nothing)
    end, bufnr)
  end)
end

---Fill the function body or the hole at the cursor.
function M.here()
  offered({ "body", "hole" }, "there is nothing to fill here")
end

---Fill all holes of the buffer.
function M.all()
  server.with_client(function(client, bufnr)
    run(
      client,
      bufnr,
      { ["do"] = "all", textDocument = document(bufnr), range = cursor_range(client, bufnr) }
    )
  end)
end

---Repair the broken syntax at the cursor.
function M.repair()
  offered({ "repair" }, "there is no broken syntax here")
end

---Write a docstring for the function or class at the cursor.
function M.docstring()
  offered({ "docstring" }, "there is nothing to document here")
end

---Regenerate lines, or the last visual selection if it covers exactly these lines.
---@param first integer 1-based
---@param last integer 1-based
---@param instruction? string
function M.regenerate(first, last, instruction)
  local from, to = 0, math.huge
  if vim.fn.visualmode() == "v" and vim.fn.line("'<") == first and vim.fn.line("'>") == last then
    from = vim.fn.col("'<") - 1
    local line = vim.fn.getline(last)
    local at = vim.fn.col("'>")
    -- The mark stands at the first byte of the last character, which belongs to the selection.
    -- But where 'selection' says that it does not.
    local is_inside = vim.o.selection ~= "exclusive"
    to = at > #line and #line or at - 1 + (is_inside and #vim.fn.matchstr(line:sub(at), ".") or 0)
  end
  server.with_client(function(client, bufnr)
    run(client, bufnr, {
      ["do"] = "regenerate",
      textDocument = document(bufnr),
      range = {
        start = position(bufnr, first - 1, from, client.offset_encoding),
        ["end"] = position(bufnr, last - 1, to, client.offset_encoding),
      },
      instruction = instruction or "",
    })
  end)
end

---Return whether an edit may be applied: what needs confirmation is shown to the user first, as a diff.
---@param bufnr integer
---@param change lsp.TextDocumentEdit
---@param annotations table<string, lsp.ChangeAnnotation>
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return boolean
local function is_agreed(bufnr, change, annotations, encoding)
  for _, annotation in pairs(annotations) do
    if annotation.needsConfirmation then
      return preview.ask(bufnr, change.edits, encoding, annotation.label)
    end
  end
  return true
end

---Apply an edit of the server's. Neovim itself would take a buffer without a name for the root directory, and answer
---that it had applied an edit of text that has changed.
---@param err lsp.ResponseError?
---@param params lsp.ApplyWorkspaceEditParams
---@param context lsp.HandlerContext
---@return lsp.ApplyWorkspaceEditResult
function M.apply(err, params, context)
  local client = vim.lsp.get_client_by_id(context.client_id)
  local change = (params.edit.documentChanges or {})[1]
  local bufnr = client and change and server.buffer(client, change.textDocument.uri)
  if not client or not bufnr or not change then
    return vim.lsp.handlers["workspace/applyEdit"](err, params, context)
  end
  for _, edit in ipairs(change.edits) do
    -- Neovim would ask about each of these in a way of its own.
    edit.annotationId = nil
  end
  if not is_agreed(bufnr, change, params.edit.changeAnnotations or {}, client.offset_encoding) then
    return { applied = false, failureReason = "the user said no" }
  end
  -- What was typed a moment ago the server has yet to hear of.
  if not vim.api.nvim_buf_is_loaded(bufnr) then
    return { applied = false, failureReason = "the buffer is gone" }
  end
  if vim.lsp.util.buf_versions[bufnr] ~= change.textDocument.version then
    server.say("the document changed while it was filled", "WARN")
    return { applied = false, failureReason = "the document has changed" }
  end
  local ok, reason = pcall(vim.lsp.util.apply_text_edits, change.edits, bufnr, client.offset_encoding)
  return { applied = ok, failureReason = reason }
end

---End all fills that are under way, those that were begun from a menu too.
function M.cancel()
  local n = 0
  for client_id, ids in pairs(running) do
    local client = vim.lsp.get_client_by_id(client_id)
    for id in pairs(ids) do
      n = n + 1
      if client then
        client:cancel_request(id)
      end
    end
    running[client_id] = nil
  end
  for client_id, tokens in pairs(bars) do
    local client = vim.lsp.get_client_by_id(client_id)
    for token in pairs(tokens) do
      n = n + 1
      if client then
        client:notify("window/workDoneProgress/cancel", { token = token })
      end
    end
    bars[client_id] = nil
  end
  if n == 0 then
    server.say("nothing is being filled")
  end
end

vim.api.nvim_create_autocmd("LspProgress", {
  group = vim.api.nvim_create_augroup("dg-lsp-progress", {}),
  pattern = { "begin", "end" },
  callback = function(event)
    local client = vim.lsp.get_client_by_id(event.data.client_id)
    if client and client.name == server.NAME then
      local params = event.data.params
      bars[client.id] = bars[client.id] or {}
      bars[client.id][params.token] = params.value.kind == "begin" or nil
    end
  end,
})

return M
