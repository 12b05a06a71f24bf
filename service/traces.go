package service

// setTraces makes the exporter send attempts to the collector in the settings. If that fails, it returns a
// message; it returns "" if it succeeds.
func (s *Service) setTraces() (trouble string) {
	if s.traces == nil {
		return ""
	}
	if err := s.traces.Set(s.config.Load().TracesEndpoint); err != nil {
		s.log.Error("traces of attempts are not sent", "error", err)
		return "traces of attempts are not sent: " + err.Error()
	}
	return ""
}
