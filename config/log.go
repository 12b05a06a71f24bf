package config

// ServiceLogName is the log, below its folder, of the system's service on Windows, which
// has no journal.
const ServiceLogName = "service.log"
