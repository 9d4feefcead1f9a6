;;; dg-lsp.el --- Fill holes in code with a language model  -*- lexical-binding: t; -*-

;; Author: The dg-lsp developers
;; Version: 0.1.0
;; Package-Requires: ((emacs "28.1") (lsp-mode "10.0.0"))
;; Keywords: convenience, languages, tools
;; SPDX-License-Identifier: Apache-2.0

;;; Commentary:

;; Suggestions that use the text on both sides of point, and commands that
;; fill function bodies, marked holes and regions.  The model runs on your own
;; machine.  The program `dg-lsp' must be on PATH.
;;
;;   (require 'dg-lsp)
;;   (add-hook 'prog-mode-hook #'lsp-deferred)
;;
;; Suggestions use `lsp-inline-completion-mode': C-<return> accepts,
;; C-n and C-p show others, C-g dismisses them.
;;
;;   M-x dg-lsp-fill             fill the function body or the hole at point
;;   M-x dg-lsp-fill-buffer      fill all holes
;;   M-x dg-lsp-regenerate       regenerate the region, with your instruction
;;   M-x dg-lsp-status           show the status

;;; Code:

(require 'lsp-mode)
(require 'lsp-inline-completion)
(require 'subr-x)

(defgroup dg-lsp nil
  "Fill holes in code with a language model."
  :group 'lsp-mode
  :prefix "dg-lsp-")

(defcustom dg-lsp-command '("dg-lsp" "serve")
  "The command that starts the server."
  :type '(repeat string))

(lsp-defcustom dg-lsp-model "auto"
  "The model: \"auto\", \"embedded\", a laptop model, a folder or a hub id.
It may also be a remote model."
  :type 'string
  :group 'dg-lsp
  :lsp-path "dgLsp.engine.model")

(lsp-defcustom dg-lsp-threshold 0.3
  "Lowest probability of an unprompted suggestion."
  :type 'float
  :group 'dg-lsp
  :lsp-path "dgLsp.completion.threshold")

(lsp-defcustom dg-lsp-trigger "auto"
  "When to suggest: \"auto\" while typing, \"manual\" only on request."
  :type '(choice (const "auto") (const "manual"))
  :group 'dg-lsp
  :lsp-path "dgLsp.completion.trigger")

(defcustom dg-lsp-show-drafts t
  "Whether to show drafts of fills."
  :type 'boolean)

(defface dg-lsp-draft '((t :inherit shadow :slant italic))
  "Face for the draft of a fill.")

(defvar dg-lsp--status nil
  "The last status of the server.")

(defvar-local dg-lsp--overlays nil
  "The overlays of the current draft.")

(defvar dg-lsp-draft-hook nil
  "Hook run in the buffer after a draft is drawn.")

;;; Notifications from the server

(defun dg-lsp--on-status (_workspace params)
  "Store PARAMS, the server's status."
  (setq dg-lsp--status params)
  (force-mode-line-update t))

(defun dg-lsp--clear ()
  "Remove the current draft from the screen."
  (mapc #'delete-overlay dg-lsp--overlays)
  (setq dg-lsp--overlays nil))

(defun dg-lsp--on-draft (_workspace params)
  "Draw the draft in PARAMS."
  (when-let* ((document (lsp-get params :textDocument))
              (buffer (find-buffer-visiting (lsp--uri-to-path (lsp-get document :uri)))))
    (with-current-buffer buffer
      (dg-lsp--clear)
      ;; The positions of a draft are valid only for its version.
      (when (and dg-lsp-show-drafts
                 (not (eq (lsp-get params :done) t))
                 (equal (lsp-get document :version) lsp--cur-version))
        (seq-do #'dg-lsp--draw (lsp-get params :holes))
        (run-hooks 'dg-lsp-draft-hook)))))

(defun dg-lsp--draw (hole)
  "Draw HOLE's text over the buffer text of its range."
  (pcase-let* ((`(,start . ,end) (lsp--range-to-region (lsp-get hole :range)))
               (text (propertize (lsp-get hole :text) 'face 'dg-lsp-draft))
               (overlay (make-overlay start end)))
    (overlay-put overlay 'dg-lsp t)
    (if (= start end)
        (overlay-put overlay 'after-string text)
      (overlay-put overlay 'display text))
    (push overlay dg-lsp--overlays)))

(defun dg-lsp--on-exit (workspace)
  "Clear the status and the drafts if WORKSPACE is a dg-lsp server."
  (when (eq (lsp--client-server-id (lsp--workspace-client workspace)) 'dg-lsp)
    (setq dg-lsp--status nil)
    ;; The server can no longer end its drafts.
    (dolist (buffer (buffer-list))
      (with-current-buffer buffer (dg-lsp--clear)))
    (force-mode-line-update t)))

(add-hook 'lsp-after-uninitialized-functions #'dg-lsp--on-exit)

;;; Filling

(defun dg-lsp--workspace ()
  "Return the buffer's server, or signal a `user-error'."
  (or (seq-find (lambda (workspace)
                  (eq (lsp--client-server-id (lsp--workspace-client workspace)) 'dg-lsp))
                (lsp-workspaces))
      (user-error "The dg-lsp server is not running for this buffer")))

(defun dg-lsp--run (params)
  "Run the action with PARAMS on the server, which sends its edit as a request."
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async
     "workspace/executeCommand"
     (list :command "dgLsp.fill" :arguments (vector params))
     #'dg-lsp--report-fills
     :mode 'detached
     :error-handler (lambda (err) (message "dg-lsp: %s" (lsp-get err :message))))))

(defun dg-lsp--report-fills (answer)
  "Show the model's confidence in the fills of ANSWER.
If there were several holes, list the fills and count the holes.
If there was nothing to fill, the server has shown a message."
  (when (eq (lsp-get answer :applied) t)
    (let ((fills (lsp-get answer :fills)))
      (if (> (or (lsp-get answer :nHoles) 1) 1)
          (dg-lsp--list-fills fills (lsp-get answer :nHoles))
        (message "dg-lsp: filled (%s)" (lsp-get answer :note))))))

(defun dg-lsp--list-fills (fills n-holes)
  "Show FILLS of N-HOLES holes in a review list, with a link to each."
  (let* ((source (current-buffer))
         (name (buffer-file-name source))
         (lines (mapcar (lambda (fill)
                          (format "%s:%d: %s: %s"
                                  (if name (file-name-nondirectory name) (buffer-name source))
                                  (1+ (lsp-get (lsp-get (lsp-get fill :range) :start) :line))
                                  (lsp-get fill :confidence)
                                  (car (split-string (string-trim (lsp-get fill :text)) "\n"))))
                        fills)))
    (with-current-buffer (get-buffer-create "*dg-lsp fills*")
      (let ((inhibit-read-only t))
        (erase-buffer)
        (insert (format "%d of %d holes filled\n" (length fills) n-holes)
                (string-join lines "\n") "\n")
        (when name
          (setq default-directory (file-name-directory name)))
        (compilation-mode))
      (display-buffer (current-buffer)))))

(defun dg-lsp--ask (_workspace params)
  "Ask the user the question in PARAMS with `y-or-n-p', and return the answer.
A question without exactly two answers is left to `lsp-mode'."
  (let ((actions (append (lsp-get params :actions) nil)))
    (if (/= (length actions) 2)
        (list :title (lsp--window-log-message-request params))
      (if (y-or-n-p (concat (lsp-get params :message) " "))
          (car actions)
        (cadr actions)))))

(defun dg-lsp--params (kind &optional instruction)
  "Return the parameters of the action KIND at point, with an INSTRUCTION."
  (dg-lsp--workspace)
  (list :do kind
        :textDocument (lsp--versioned-text-document-identifier)
        :range (if (use-region-p)
                   (lsp--region-to-range (region-beginning) (region-end))
                 (lsp--region-to-range (point) (point)))
        :instruction (or instruction "")))

(defun dg-lsp--run-offered (kinds none-message)
  "Run the first action in KINDS that is available at point.
Show NONE-MESSAGE if none is."
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async
     "textDocument/codeAction"
     (list :textDocument (lsp--text-document-identifier)
           :range (lsp--region-to-range (point) (point))
           :context (list :diagnostics [] :triggerKind 1))
     (lambda (actions)
       (let ((offered-action
              (seq-some
               (lambda (kind)
                 (seq-find (lambda (action)
                             (equal (dg-lsp--kind (lsp-get action :data)) kind))
                           actions))
               kinds)))
         (if offered-action
             (dg-lsp--run (lsp-get offered-action :data))
           (message "dg-lsp: %s" none-message))))
     :mode 'tick)))

(defun dg-lsp--kind (data)
  "Return the kind of the action with DATA; nil for other servers' actions."
  (and data (lsp-get data :do)))

(defun dg-lsp-fill ()
  "Fill the function body or the hole at point."
  (interactive "*")
  (dg-lsp--run-offered '("body" "hole") "there is nothing to fill here"))

(defun dg-lsp-fill-buffer ()
  "Fill all holes of the buffer."
  (interactive "*")
  (dg-lsp--run (dg-lsp--params "all")))

(defun dg-lsp-regenerate (instruction)
  "Regenerate the region, with an INSTRUCTION."
  (interactive
   (progn
     (barf-if-buffer-read-only)
     (dg-lsp--workspace)
     (unless (use-region-p)
       (user-error "Nothing is selected"))
     (list (read-string "What should it do? "))))
  (dg-lsp--run (dg-lsp--params "regenerate" instruction)))

(defun dg-lsp-repair ()
  "Repair the broken syntax at point."
  (interactive "*")
  (dg-lsp--run-offered '("repair") "there is no broken syntax here"))

(defun dg-lsp-docstring ()
  "Document the function or class at point."
  (interactive "*")
  (dg-lsp--run-offered '("docstring") "there is nothing to document here"))

(defun dg-lsp-restart-engine ()
  "Restart the engine."
  (interactive)
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async "workspace/executeCommand"
                       (list :command "dgLsp.restartEngine" :arguments [])
                       #'ignore :mode 'detached)))

;;; Status

(defconst dg-lsp--pause-codes '("off" "manual" "language")
  "Reasons that the user chose in the settings.
Every other reason concerns one place only.")

(defun dg-lsp--state-word ()
  "Return Ready, Working, Paused or Problem."
  (let ((state (lsp-get dg-lsp--status :state))
        (suppressed (lsp-get dg-lsp--status :suppressed)))
    (cond ((equal state "failed") "Problem")
          ((or (eq (lsp-get dg-lsp--status :busy) t) (member state '("starting" "loading"))) "Working")
          ((and suppressed (member (lsp-get suppressed :code) dg-lsp--pause-codes)) "Paused")
          (t "Ready"))))

(defun dg-lsp-status-text ()
  "Return the status in sentences, one for each line."
  (if (not dg-lsp--status)
      "dg-lsp has not reported its status yet."
    (let ((suppressed (lsp-get dg-lsp--status :suppressed))
          (latency (lsp-get dg-lsp--status :latencyMs))
          (message (lsp-get dg-lsp--status :message)))
      (string-join
       (delq nil
             (list (format "%s: the engine %s, with model %s."
                           (dg-lsp--state-word)
                           (let ((state (lsp-get dg-lsp--status :state)))
                             (cond ((equal state "failed") "has failed")
                                   ((equal state "off") "is off until the next request")
                                   (t (concat "is " state))))
                           (lsp-get dg-lsp--status :model))
                   (and message (not (string-empty-p message)) message)
                   (and latency (format "The last answer took %d ms." latency))
                   (and suppressed
                        (format "No suggestion: %s." (lsp-get suppressed :message)))))
       "\n"))))

(defun dg-lsp-status ()
  "Show the status, and why there was no suggestion."
  (interactive)
  (message "%s" (dg-lsp-status-text)))

(defun dg-lsp-mode-line ()
  "Return the status for `mode-line-misc-info', \"\" without a server."
  (if dg-lsp--status (format " DG %s" (dg-lsp--state-word)) ""))

;;; The client

(defun dg-lsp--environment ()
  "Return variables that let nothing of the project's folder be imported or run."
  (cons '("PYTHONSAFEPATH" . "1")
        (mapcar (lambda (name)
                  (let ((folders (split-string (or (getenv name) "") path-separator t)))
                    (cons name (mapconcat #'identity (seq-filter #'file-name-absolute-p folders) path-separator))))
                '("PATH" "PYTHONPATH"))))

(lsp-register-client
 (make-lsp-client
  :new-connection (lsp-stdio-connection (lambda () dg-lsp-command))
  :environment-fn #'dg-lsp--environment
  :activation-fn (lambda (_file-name mode) (provided-mode-derived-p mode 'prog-mode))
  :server-id 'dg-lsp
  ;; Run in addition to the language's own server.
  :add-on? t
  :priority -5
  :multi-root t
  :custom-capabilities '((experimental . ((dgLsp . ((status . t) (draft . t))))))
  :initialized-fn (lambda (workspace)
                    (with-lsp-workspace workspace
                      (lsp--set-configuration (lsp-configuration-section "dgLsp"))))
  :request-handlers (ht ("window/showMessageRequest" #'dg-lsp--ask))
  :notification-handlers (ht ("dgLsp/status" #'dg-lsp--on-status)
                             ("dgLsp/draft" #'dg-lsp--on-draft))))

(lsp-consistency-check dg-lsp)

(provide 'dg-lsp)
;;; dg-lsp.el ends here
