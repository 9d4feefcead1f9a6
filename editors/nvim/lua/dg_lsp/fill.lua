-- The commands that fill holes: they send a request to the server, which sends the edit, its progress and drafts.

local preview = require("dg_lsp.preview")
local server = require("dg_lsp.server")

local M = {}

---Running fill requests, by client and request id.
---@type table<integer, table<integer, true>>
local running = {}
---Tokens of running progress reports, by client.
---@type table<integer, table<string|integer, true>>
local progress_tokens = {}

---Titles of running downloads, by token.
---@type table<string|integer, string>
local downloads = {}

---Show the confidence of a fill. If there were several holes, put the fills into the location list for review. A single
---fill of several holes is counted too, because this message replaces the server's about the other holes.
---@param bufnr integer
---@param answer { applied: boolean, note?: string, nHoles?: integer, fills?: table[] }
---@param encoding "utf-8"|"utf-16"|"utf-32"
local function report_fills(bufnr, answer, encoding)
  local fills = answer.applied and answer.fills or {}
  if #fills > 0 and (answer.nHoles or 1) > 1 then
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
    server.notify(("%d of %d holes filled; :lopen lists them"):format(#fills, answer.nHoles))
  elseif #fills == 1 and answer.note ~= "" then
    server.notify(("filled (%s)"):format(answer.note))
  end
end

---@param client vim.lsp.Client
---@param bufnr integer
---@param action table the parameters of `dgLsp.fill`
local function run(client, bufnr, action)
  local id
  local sent, request_id = client:request("workspace/executeCommand", {
    command = "dgLsp.fill",
    arguments = { action },
  }, function(err, answer)
    if id and running[client.id] then
      running[client.id][id] = nil
    end
    -- If there was nothing to fill, the server has already shown a message.
    if err then
      server.notify(err.message, "WARN")
    elseif answer and vim.api.nvim_get_current_buf() == bufnr then
      report_fills(bufnr, answer, client.offset_encoding)
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

---Run the first of these actions that the server offers at the cursor.
---@param kinds string[] such as "body", "hole"
---@param none_message string shown if the server offers none of them
local function run_offered(kinds, none_message)
  server.with_client(function(client, bufnr)
    client:request("textDocument/codeAction", {
      textDocument = { uri = vim.uri_from_bufnr(bufnr) },
      range = cursor_range(client, bufnr),
      context = { diagnostics = {}, triggerKind = vim.lsp.protocol.CodeActionTriggerKind.Invoked },
    }, function(err, actions)
      if err then
        server.notify(err.message, "WARN")
        return
      end
      for _, kind in ipairs(kinds) do
        for _, action in ipairs(actions or {}) do
          if action.data and action.data["do"] == kind then
            run(client, bufnr, action.data)
            return
          end
        end
      end
      server.notify(none_message)
    end, bufnr)
  end)
end

---Fill the function body or the hole at the cursor.
function M.here()
  run_offered({ "body", "hole" }, "there is nothing to fill here")
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
  run_offered({ "repair" }, "there is no broken syntax here")
end

---Write a docstring for the function or class at the cursor.
function M.docstring()
  run_offered({ "docstring" }, "there is nothing to document here")
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
    -- The mark is at the first byte of the last character. That character is part of the selection,
    -- except if 'selection' is "exclusive".
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

---Return whether an edit may be applied. If an annotation needs confirmation, ask the user with a diff.
---@param bufnr integer
---@param change lsp.TextDocumentEdit
---@param annotations table<string, lsp.ChangeAnnotation>
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return boolean
local function is_confirmed(bufnr, change, annotations, encoding)
  for _, annotation in pairs(annotations) do
    if annotation.needsConfirmation then
      return preview.ask(bufnr, change.edits, encoding, annotation.label)
    end
  end
  return true
end

---Handle `workspace/applyEdit`. Neovim's own handler takes a buffer without a name for the root directory, and reports
---success when it rejects an edit because the text has changed.
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
    -- Neovim would show its own message about each annotation.
    edit.annotationId = nil
  end
  if not is_confirmed(bufnr, change, params.edit.changeAnnotations or {}, client.offset_encoding) then
    return { applied = false, failureReason = "the user declined the change" }
  end
  -- The user may have closed the buffer or typed meanwhile, and the server may not know it yet.
  if not vim.api.nvim_buf_is_loaded(bufnr) then
    return { applied = false, failureReason = "the buffer was closed" }
  end
  if vim.lsp.util.buf_versions[bufnr] ~= change.textDocument.version then
    server.notify("the document changed while it was filled", "WARN")
    return { applied = false, failureReason = "the document has changed" }
  end
  local ok, reason = pcall(vim.lsp.util.apply_text_edits, change.edits, bufnr, client.offset_encoding)
  return { applied = ok, failureReason = reason }
end

---Cancel all running fills, including those started from the code action menu.
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
  for client_id, tokens in pairs(progress_tokens) do
    local client = vim.lsp.get_client_by_id(client_id)
    for token in pairs(tokens) do
      n = n + 1
      if client then
        client:notify("window/workDoneProgress/cancel", { token = token })
      end
    end
    progress_tokens[client_id] = nil
  end
  if n == 0 then
    server.notify("no fill is running")
  end
end

---Show how far a download is. A fill shows its drafts instead.
---@param token string|integer
---@param value table
local function show_download(token, value)
  vim.api.nvim_echo({ { value.message or "" } }, false, {
    id = "dg-lsp-" .. token,
    kind = "progress",
    source = "dg-lsp",
    title = downloads[token],
    status = value.kind == "end" and "success" or "running",
    percent = value.kind == "end" and 100 or value.percentage,
  })
end

vim.api.nvim_create_autocmd("LspProgress", {
  group = vim.api.nvim_create_augroup("dg-lsp-progress", {}),
  callback = function(event)
    local client = vim.lsp.get_client_by_id(event.data.client_id)
    if not client or client.name ~= server.NAME then
      return
    end
    local token, value = event.data.params.token, event.data.params.value
    if value.kind == "begin" then
      downloads[token] = vim.startswith(value.title or "", "Downloading ") and value.title or nil
    end
    if downloads[token] then
      show_download(token, value)
    end
    if value.kind ~= "report" then
      progress_tokens[client.id] = progress_tokens[client.id] or {}
      progress_tokens[client.id][token] = value.kind == "begin" or nil
    end
    if value.kind == "end" then
      downloads[token] = nil
    end
  end,
})

return M
