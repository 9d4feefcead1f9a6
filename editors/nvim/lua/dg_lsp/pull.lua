-- The download of a better model: one message says that there is one, and `:Dg pull` asks. Nothing opens by itself,
-- because the keys of a user who is typing would answer it.

local server = require("dg_lsp.server")

local M = {}

local DOWNLOAD, LATER, NEVER = "Download", "Not now", "Never"

---Whether this session has shown the offer.
local is_announced = false

---Return what is offered and how to accept it, as a sentence without its full stop.
---@param offer dg_lsp.Offer
---@return string
function M.sentence(offer)
  return ("%s (%s, downloaded once) gives %s. :Dg pull downloads it, and :Dg pull never ends this offer"):format(
    offer.model,
    offer.size,
    offer.gives
  )
end

---Tell the user of a new offer, once in a session.
---@param offer? dg_lsp.Offer
function M.announce(offer)
  if offer and offer.isNew and not is_announced then
    is_announced = true
    local short = ("better model (%s): :Dg pull; never ask: :Dg pull never"):format(offer.size)
    server.notify(M.sentence(offer), "INFO", short)
  end
end

---@param client vim.lsp.Client
---@param choice "download"|"never"
local function send(client, choice)
  client:exec_cmd({ title = "download a model", command = "dgLsp.pull", arguments = { choice } })
  if choice == "never" then
    server.notify("no model is offered any more; :Dg pull still downloads one")
  end
end

---Ask whether to download the offered model; with "never", end the offers without a question.
---@param choice? string
function M.run(choice)
  if choice ~= nil and choice ~= "never" then
    server.notify(("unknown argument %s; use :Dg pull or :Dg pull never"):format(choice), "ERROR")
    return
  end
  server.with_client(function(client, bufnr)
    if choice == "never" then
      send(client, "never")
      return
    end
    local status = require("dg_lsp.status").current(bufnr)
    if not status then
      server.notify("the server has not reported its status yet; try again")
    elseif not status.offer then
      server.notify(("no download is offered, with model %s; :DgModel lists models"):format(status.model))
    else
      local offer = status.offer --[[@as dg_lsp.Offer]]
      vim.ui.select({ DOWNLOAD, LATER, NEVER }, {
        prompt = ("Download %s (%s, once)? It gives %s."):format(offer.model, offer.size, offer.gives),
      }, function(answer)
        -- Below the list, a message would wait for Enter.
        vim.cmd.redraw()
        if answer == DOWNLOAD then
          -- Neovim shows a server's progress only where the user's statusline has it.
          server.notify(("downloading %s (%s)"):format(offer.model, offer.size))
          send(client, "download")
        elseif answer == NEVER then
          send(client, "never")
        end
      end)
    end
  end)
end

return M
