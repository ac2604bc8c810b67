package manifest

// NewVerbatimLoader is NewLoader, with the API server's own words in the errors.
func NewVerbatimLoader() (*Loader, error) {
	loader, err := NewLoader()
	if err != nil {
		return nil, err
	}
	for _, admission := range loader.admission {
		admission.verbatim = true
	}
	return loader, nil
}
