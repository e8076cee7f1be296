# Debian's exporter, for docs/monitoring/sql_exporter.yml.
FROM debian:trixie-slim

RUN apt-get update && apt-get install -y --no-install-recommends \
    prometheus-sql-exporter \
    && rm -rf /var/lib/apt/lists/*

USER nobody
ENV CONFIG=/etc/sql_exporter.yml
CMD ["prometheus-sql-exporter"]
