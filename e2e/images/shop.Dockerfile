# An image of the example of crates/client. build.sh provides the program, its shared libraries and three files of /etc.
FROM scratch
COPY . /
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/shop"]
