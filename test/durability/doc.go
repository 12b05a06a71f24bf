// Package durability checks from outside that acknowledged jobs and results survive crashes, full disks and power cuts.
package durability
