// Package packaging holds the files that make queuectl a service of Linux, the very
// ones that the packages install.
package packaging

import "embed"

// Files are the units, the accounts, the folders and the first settings.
//
//go:embed queuectl.service queuectl.socket queuectl-runner.socket queuectl-runner@.service
//go:embed queuectl.sysusers queuectl.tmpfiles queuectl.toml runner.conf
var Files embed.FS
