# From scratch: build.sh puts the binary, the shared libraries that it is linked against and three files of /etc here.
FROM scratch
COPY . /
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/weir-agent"]
