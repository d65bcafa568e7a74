# From scratch: build.sh copies Debian's redis-server, its shared libraries and three files of /etc into this image.
FROM scratch
COPY . /
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/redis-server"]
