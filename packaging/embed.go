// Package packaging holds the files that make queuectl a service of the system: the very
// ones that the packages install.
package packaging

import "embed"

// Files are the units, the accounts, the folders and the first settings; below user
// the units of one user's own service, below windows the first settings there; and what
// launchd wants instead. What differs between machines stands in them as @NAME@, the
// programs as /usr/bin/queuectl and /usr/libexec/queuectl/queuectld.
//
//go:embed queuectl.service queuectl.socket queuectl-web.socket queuectl-runner.socket queuectl-runner@.service
//go:embed queuectl.sysusers queuectl.tmpfiles queuectl.toml runner.conf
//go:embed user launchd.plist windows/queuectl.toml
var Files embed.FS
