module quiver-promtool

go 1.24.0

require github.com/prometheus/prometheus v0.305.0
