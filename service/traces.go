package service

// setTraces has attempts told to the collector that the settings name; what keeps them from that is returned, for
// people.
func (s *Service) setTraces() (trouble string) {
	if s.traces == nil {
		return ""
	}
	if err := s.traces.Set(s.config.Load().TracesEndpoint); err != nil {
		s.log.Error("attempts are told to no collector", "error", err)
		return "attempts are told to no collector: " + err.Error()
	}
	return ""
}
