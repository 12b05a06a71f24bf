package service

// setTraces has attempts told to the collector that the settings name; what keeps them from that is returned, for
// people.
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
