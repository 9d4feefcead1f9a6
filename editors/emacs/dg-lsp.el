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
  "The command that starts the server."
  :type '(repeat string))

(lsp-defcustom dg-lsp-model "embedded"
  "The model: \"embedded\", a model's name, or a folder."
  :type 'string
  :group 'dg-lsp
  :lsp-path "dgLsp.engine.model")

(lsp-defcustom dg-lsp-threshold 0.15
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

;;; What the server tells

(defun dg-lsp--heard-status (_workspace params)
  "Remember PARAMS, the server's status."
  (setq dg-lsp--status params)
  (force-mode-line-update t))

(defun dg-lsp--clear ()
  "Remove the current draft from the screen."
  (mapc #'delete-overlay dg-lsp--overlays)
  (setq dg-lsp--overlays nil))

(defun dg-lsp--heard-draft (_workspace params)
  "Draw the draft in PARAMS."
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
  "Draw HOLE's text over the buffer text of its range."
  (pcase-let* ((`(,start . ,end) (lsp--range-to-region (lsp-get hole :range)))
               (text (propertize (lsp-get hole :text) 'face 'dg-lsp-draft))
               (overlay (make-overlay start end)))
    (overlay-put overlay 'dg-lsp t)
    (if (= start end)
        (overlay-put overlay 'after-string text)
      (overlay-put overlay 'display text))
    (push overlay dg-lsp--overlays)))

(defun dg-lsp--ended (workspace)
  "Forget the status of WORKSPACE, if it is ours."
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
      (user-error "The dg-lsp server is not running for this buffer")))

(defun dg-lsp--run (wanted)
  "Run the action WANTED on the server, which sends its edit as a request."
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async
     "workspace/executeCommand"
     (list :command "dgLsp.fill" :arguments (vector wanted))
     #'dg-lsp--filled
     :mode 'detached
     :error-handler (lambda (err) (message "dg-lsp: %s" (lsp-get err :message))))))

(defun dg-lsp--filled (answer)
  "Show the model's confidence in the fills of ANSWER.
Where there was nothing to fill, the server has said so."
  (when (eq (lsp-get answer :applied) t)
    (let ((fills (lsp-get answer :fills)))
      (if (> (length fills) 1)
          (dg-lsp--list fills (lsp-get answer :nHoles))
        (message "dg-lsp: filled (%s)" (lsp-get answer :note))))))

(defun dg-lsp--list (fills n-holes)
  "List FILLS, of N-HOLES holes, in a buffer with a link to each."
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
  "Ask the user the server's question PARAMS, by y or n, and return the answer.
Others than yes-or-no questions are left to `lsp-mode'."
  (let ((actions (append (lsp-get params :actions) nil)))
    (if (/= (length actions) 2)
        (list :title (lsp--window-log-message-request params))
      (if (y-or-n-p (concat (lsp-get params :message) " "))
          (car actions)
        (cadr actions)))))

(defun dg-lsp--wanted (what &optional instruction)
  "Return the parameters of the action WHAT at point, with an INSTRUCTION."
  (dg-lsp--workspace)
  (list :do what
        :textDocument (lsp--versioned-text-document-identifier)
        :range (if (use-region-p)
                   (lsp--region-to-range (region-beginning) (region-end))
                 (lsp--region-to-range (point) (point)))
        :instruction (or instruction "")))

(defun dg-lsp--offered (whats nothing)
  "Run the first action of WHATS that is possible at point, or show NOTHING."
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
  "Return the name of the action with DATA; nil for other servers' actions."
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
  "Regenerate the region, with an INSTRUCTION."
  (interactive
   (progn
     (barf-if-buffer-read-only)
     (dg-lsp--workspace)
     (unless (use-region-p)
       (user-error "Nothing is selected"))
     (list (read-string "What should it do? "))))
  (dg-lsp--run (dg-lsp--wanted "regenerate" instruction)))

(defun dg-lsp-repair ()
  "Repair the broken syntax at point."
  (interactive "*")
  (dg-lsp--offered '("repair") "there is no broken syntax here"))

(defun dg-lsp-docstring ()
  "Document the function or class at point."
  (interactive "*")
  (dg-lsp--offered '("docstring") "there is nothing to document here"))

(defun dg-lsp-restart-engine ()
  "Restart the engine."
  (interactive)
  (with-lsp-workspace (dg-lsp--workspace)
    (lsp-request-async "workspace/executeCommand"
                       (list :command "dgLsp.restartEngine" :arguments [])
                       #'ignore :mode 'detached)))

;;; Status

(defun dg-lsp-story ()
  "Return the status as text."
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
  "Show the status, and why there was no suggestion."
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
  :request-handlers (ht ("window/showMessageRequest" #'dg-lsp--ask))
  :notification-handlers (ht ("dgLsp/status" #'dg-lsp--heard-status)
                             ("dgLsp/draft" #'dg-lsp--heard-draft))))

(lsp-consistency-check dg-lsp)

(provide 'dg-lsp)
;;; dg-lsp.el ends here
