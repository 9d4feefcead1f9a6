;;; dg-lsp.el --- Fill holes in code with a text-diffusion model  -*- lexical-binding: t; -*-

;; Author: The dg-lsp developers
;; Version: 0.1.0
;; Package-Requires: ((emacs "28.1") (lsp-mode "10.0.0"))
;; Keywords: convenience, languages, tools
;; SPDX-License-Identifier: Apache-2.0

;;; Commentary:

;; Suggestions that know the text on both sides of point, and commands that
;; fill function bodies, marked holes and regions.  The model runs on your own
;; machine; the program `dg-lsp' is needed, in a Python environment on PATH.
;;
;;   (require 'dg-lsp)
;;   (add-hook 'prog-mode-hook #'lsp-deferred)
;;
;; Suggestions are those of `lsp-inline-completion-mode': C-<return> accepts,
;; C-n and C-p show others, C-g takes them away.
;;
;;   M-x dg-lsp-fill             the function body or the hole at point
;;   M-x dg-lsp-fill-buffer      all holes
;;   M-x dg-lsp-regenerate       the region, as you say
;;   M-x dg-lsp-status           how things are, and why nothing was suggested

;;; Code:

(require 'lsp-mode)
(require 'lsp-inline-completion)
(require 'subr-x)

(defgroup dg-lsp nil
  "Fill holes in code with a text-diffusion model."
  :group 'lsp-mode
  :prefix "dg-lsp-")

(defcustom dg-lsp-command '("dg-lsp" "serve")
  "How the server is started."
  :type '(repeat string))

(lsp-defcustom dg-lsp-model "embedded"
  "The model: \"embedded\", a model's name, or a folder."
  :type 'string
  :group 'dg-lsp
  :lsp-path "dgLsp.engine.model")

(lsp-defcustom dg-lsp-threshold 0.15
  "Show by itself only what is right with at least this probability."
  :type 'float
  :group 'dg-lsp
  :lsp-path "dgLsp.completion.threshold")

(lsp-defcustom dg-lsp-trigger "auto"
  "When to suggest: \"auto\" while typing, \"manual\" only when asked for."
  :type '(choice (const "auto") (const "manual"))
  :group 'dg-lsp
  :lsp-path "dgLsp.completion.trigger")

(defcustom dg-lsp-show-drafts t
  "Whether a fill is shown while it is being written."
  :type 'boolean)

(defface dg-lsp-draft '((t :inherit shadow :slant italic))
  "Face for a fill while it is being written.")

(defvar dg-lsp--status nil
  "What the server has told of itself last.")

(defvar-local dg-lsp--overlays nil
  "What is drawn of a fill that is under way.")

(defvar dg-lsp-draft-hook nil
  "Run in the buffer after each draft of a fill was drawn.")

;;; What the server tells

(defun dg-lsp--heard-status (_workspace params)
  "Remember PARAMS, the server's status."
  (setq dg-lsp--status params)
  (force-mode-line-update t))

(defun dg-lsp--clear ()
  "Take what is drawn of a fill off the screen."
  (mapc #'delete-overlay dg-lsp--overlays)
  (setq dg-lsp--overlays nil))

(defun dg-lsp--heard-draft (_workspace params)
  "Draw PARAMS, a fill that is under way."
  (when-let* ((document (lsp-get params :textDocument))
              (buffer (find-buffer-visiting (lsp--uri-to-path (lsp-get document :uri)))))
    (with-current-buffer buffer
      (dg-lsp--clear)
      ;; A draft of another version would be drawn in the wrong places.
      (when (and dg-lsp-show-drafts
                 (not (eq (lsp-get params :done) t))
                 (equal (lsp-get document :version) lsp--cur-version))
        (seq-do #'dg-lsp--draw (lsp-get params :holes))
        (run-hooks 'dg-lsp-draft-hook)))))

(defun dg-lsp--draw (hole)
  "Draw HOLE's text over what it will replace."
  (pcase-let* ((`(,start . ,end) (lsp--range-to-region (lsp-get hole :range)))
               (text (propertize (lsp-get hole :text) 'face 'dg-lsp-draft))
               (overlay (make-overlay start end)))
    (overlay-put overlay 'dg-lsp t)
    (if (= start end)
        (overlay-put overlay 'after-string text)
      (overlay-put overlay 'display text))
    (push overlay dg-lsp--overlays)))

(defun dg-lsp--ended (workspace)
  "Forget what WORKSPACE has told, if it was ours."
  (when (eq (lsp--client-server-id (lsp--workspace-client workspace)) 'dg-lsp)
    (setq dg-lsp--status nil)
    ;; Nobody is left to end the drafts, which look like text.
    (dolist (buffer (buffer-list))
      (with-current-buffer buffer (dg-lsp--clear)))
    (force-mode-line-update t)))

(add-hook 'lsp-after-uninitialized-functions #'dg-lsp--ended)

;;; Filling

(defun dg-lsp--workspace ()
  "Return the buffer's server, or signal a `user-error'."
  (or (seq-find (lambda (workspace)
                  (eq (lsp--client-server-id (lsp--workspace-client workspace)) 'dg-lsp))
                (lsp-workspaces))
      (user-error "The server dg-lsp does not run for this buffer")))

(defun dg-lsp--run (wanted)
  "Have the server do WANTED; its edit comes as a request of its own."
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async
     "workspace/executeCommand"
     (list :command "dgLsp.fill" :arguments (vector wanted))
     ;; Where there was nothing to fill, the server has said so.
     #'ignore
     :mode 'detached
     :error-handler (lambda (err) (message "dg-lsp: %s" (lsp-get err :message))))))

(defun dg-lsp--wanted (what &optional instruction)
  "Return the parameters for WHAT to do here, with an INSTRUCTION."
  (dg-lsp--workspace)
  (list :do what
        :textDocument (lsp--versioned-text-document-identifier)
        :range (if (use-region-p)
                   (lsp--region-to-range (region-beginning) (region-end))
                 (lsp--region-to-range (point) (point)))
        :instruction (or instruction "")))

(defun dg-lsp--offered (whats nothing)
  "Do the first of WHATS that can be done at point, or say NOTHING."
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async
     "textDocument/codeAction"
     (list :textDocument (lsp--text-document-identifier)
           :range (lsp--region-to-range (point) (point))
           :context (list :diagnostics [] :triggerKind 1))
     (lambda (actions)
       (let ((found (seq-some
                     (lambda (what)
                       (seq-find (lambda (action)
                                   (equal (dg-lsp--what (lsp-get action :data)) what))
                                 actions))
                     whats)))
         (if found
             (dg-lsp--run (lsp-get found :data))
           (message "dg-lsp: %s" nothing))))
     :mode 'tick)))

(defun dg-lsp--what (data)
  "Return what an action with DATA does, nil for other servers' actions."
  (and data (lsp-get data :do)))

(defun dg-lsp-fill ()
  "Fill the function body or the hole at point."
  (interactive "*")
  (dg-lsp--offered '("body" "hole") "there is nothing to fill here"))

(defun dg-lsp-fill-buffer ()
  "Fill all holes of the buffer."
  (interactive "*")
  (dg-lsp--run (dg-lsp--wanted "all")))

(defun dg-lsp-regenerate (instruction)
  "Write the region anew, with an INSTRUCTION."
  (interactive
   (progn
     (barf-if-buffer-read-only)
     (dg-lsp--workspace)
     (unless (use-region-p)
       (user-error "Nothing is selected"))
     (list (read-string "What should it do? "))))
  (dg-lsp--run (dg-lsp--wanted "regenerate" instruction)))

(defun dg-lsp-repair ()
  "Write the broken syntax at point anew."
  (interactive "*")
  (dg-lsp--offered '("repair") "there is no broken syntax here"))

(defun dg-lsp-docstring ()
  "Document the function or class at point."
  (interactive "*")
  (dg-lsp--offered '("docstring") "there is nothing to document here"))

(defun dg-lsp-restart-engine ()
  "Start the engine anew."
  (interactive)
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async "workspace/executeCommand"
                       (list :command "dgLsp.restartEngine" :arguments [])
                       #'ignore :mode 'detached)))

;;; Status

(defun dg-lsp-story ()
  "Return how things are, as text."
  (if (not dg-lsp--status)
      "dg-lsp has told nothing yet."
    (let ((suppressed (lsp-get dg-lsp--status :suppressed))
          (latency (lsp-get dg-lsp--status :latencyMs))
          (message (lsp-get dg-lsp--status :message)))
      (string-join
       (delq nil
             (list (format "The engine is %s, with model %s."
                           (lsp-get dg-lsp--status :state)
                           (lsp-get dg-lsp--status :model))
                   (and message (not (string-empty-p message)) message)
                   (and latency (format "The last answer took %d ms." latency))
                   (and suppressed
                        (format "No suggestion: %s." (lsp-get suppressed :message)))))
       "\n"))))

(defun dg-lsp-status ()
  "Say how things are, and why nothing was suggested."
  (interactive)
  (message "%s" (dg-lsp-story)))

(defun dg-lsp-mode-line ()
  "Return a few characters for `mode-line-misc-info', \"\" without the server."
  (if (not dg-lsp--status)
      ""
    (pcase (lsp-get dg-lsp--status :state)
      ("ready" (if (lsp-get dg-lsp--status :suppressed) " DG-" " DG"))
      (state (format " DG:%s" state)))))

;;; The client

(lsp-register-client
 (make-lsp-client
  :new-connection (lsp-stdio-connection (lambda () dg-lsp-command))
  :activation-fn (lambda (_file-name mode) (provided-mode-derived-p mode 'prog-mode))
  :server-id 'dg-lsp
  ;; Beside the server of the language itself.
  :add-on? t
  :priority -5
  :multi-root t
  :custom-capabilities '((experimental . ((dgLsp . ((status . t) (draft . t))))))
  :initialized-fn (lambda (workspace)
                    (with-lsp-workspace workspace
                      (lsp--set-configuration (lsp-configuration-section "dgLsp"))))
  :notification-handlers (ht ("dgLsp/status" #'dg-lsp--heard-status)
                             ("dgLsp/draft" #'dg-lsp--heard-draft))))

(lsp-consistency-check dg-lsp)

(provide 'dg-lsp)
;;; dg-lsp.el ends here
