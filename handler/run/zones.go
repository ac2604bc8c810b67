package run

import (
	// The worker runs in images of others, which may lack the time zones of `now.getHours('Europe/Paris')`.
	_ "time/tzdata"
)
