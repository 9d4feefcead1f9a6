-- Fill holes on request: asks the server, which answers with an edit; progress and drafts come by themselves.

local server = require("dg_lsp.server")

local M = {}

---Requests under way, by client and request id.
---@type table<integer, table<integer, true>>
local running = {}
---Bars that can be cancelled, by client and token.
---@type table<integer, table<string|integer, true>>
local bars = {}

---@param client vim.lsp.Client
---@param bufnr integer
---@param wanted table what to do, in which document, where
local function run(client, bufnr, wanted)
  local id
  local sent, request_id = client:request("workspace/executeCommand", {
    command = "dgLsp.fill",
    arguments = { wanted },
  }, function(err)
    if id and running[client.id] then
      running[client.id][id] = nil
    end
    -- Where there was nothing to fill, the server has said so.
    if err then
      server.say(err.message, "WARN")
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

---Write the broken syntax at the cursor anew.
function M.repair()
  offered({ "repair" }, "there is no broken syntax here")
end

---Write a docstring for the function or class at the cursor.
function M.docstring()
  offered({ "docstring" }, "there is nothing to document here")
end

---Write lines anew, or what the last visual selection of these very lines held.
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
  -- What was typed a moment ago the server has yet to hear of.
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
