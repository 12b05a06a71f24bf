package service

import (
	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/store"
)

// enforcement says what holds a job within its bounds here.
const enforcement = "timeouts and output by the runner; trees, memory, processors and processes by job objects, which nothing leaves"

// examineLimits looks whether descriptors suffice for what the settings allow; Windows
// bounds them by memory alone.
func examineLimits(*config.Config) []store.Finding { return nil }
