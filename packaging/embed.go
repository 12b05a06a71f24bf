// Package packaging contains the files that make queuectl a service of the operating system. The
// packages for Linux distributions install the same files.
package packaging

import "embed"

// InstalledFiles contains the systemd units, accounts, directories and initial settings. The directory user/ contains
// the units for a user's own service. The directory windows/ contains the initial settings for Windows. The file
// launchd.plist is for launchd.
//
// In the files, @NAME@ is a placeholder for a value that differs between machines. The programs have the paths of the
// packages: /usr/bin/queuectl and /usr/libexec/queuectl/queuectld.
//
//go:embed queuectl.service queuectl.socket queuectl-web.socket queuectl-runner.socket queuectl-runner@.service
//go:embed queuectl.sysusers queuectl.tmpfiles queuectl.toml runner.conf
//go:embed user launchd.plist windows/queuectl.toml
var InstalledFiles embed.FS
